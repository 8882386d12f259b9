//! NATS servers: configuration, readiness.
//!
//! `sync_interval: always` makes JetStream answer a publish only after fsync: a power cut takes nothing back. No client
//! can see that setting, so only this file sets it; servers before 2.10 do not know it.

use crate::error::Result;
use crate::exchange::is_healthy;
use crate::layout::{remove_folder, write_private};
use crate::place::ManagedServer;
use crate::process::Launch;
use crate::spec::{Nats, NatsVersion};

pub(crate) const USER: &str = "anabranch";

pub(crate) fn prepare(place: &ManagedServer) -> Result<()> {
    remove_folder(&place.folder.join("jetstream"))
}

pub(crate) fn launch(place: &ManagedServer, settings: &Nats, flags: Vec<String>) -> Result<Launch> {
    let program = place.programs.nats(settings.version)?;
    let file = place.folder.join("nats.conf");
    write_private(&file, &configuration(place, settings))?;
    let mut arguments = vec!["-c".to_owned(), file.display().to_string()];
    arguments.extend(flags);
    Ok(Launch { program, arguments, environment: Vec::new() })
}

fn configuration(place: &ManagedServer, settings: &Nats) -> String {
    let record = &place.record;
    let certificates = &place.certificates;
    let mut lines = vec![
        format!("server_name: \"{}\"", place.name()),
        format!("listen: \"127.0.0.1:{}\"", record.port),
        format!("http: \"127.0.0.1:{}\"", record.second_port),
        format!("log_file: \"{}\"", place.log_file().display()),
        "max_payload: 8MB".to_owned(),
        format!("authorization {{ users: [ {{ user: \"{USER}\", password: \"{}\" }} ] }}", record.password),
    ];
    if !record.spec.is_plain {
        lines.push(format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\" }}",
            certificates.server().display(),
            certificates.server_key().display(),
            certificates.ca().display()
        ));
    }
    if settings.jetstream {
        let sync = match settings.version {
            NatsVersion::Current => "sync_interval: always, ",
            NatsVersion::Old => "",
        };
        lines.push(format!(
            "jetstream {{ store_dir: \"{}\", {sync}max_memory_store: 256MB, max_file_store: {} }}",
            place.folder.join("jetstream").display(),
            settings.store_bytes
        ));
    }
    lines.extend(settings.configuration.iter().cloned());
    lines.join("\n") + "\n"
}

/// Whether `/healthz` answers 200, which waits for the streams.
pub(crate) fn is_ready(place: &ManagedServer) -> bool {
    is_healthy(place.record.second_port, "/healthz")
}
