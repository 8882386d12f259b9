//! NATS servers: configuration, readiness.
//!
//! `sync_interval: always` makes JetStream answer a publish only after fsync: a power cut takes nothing back. No client
//! can see that setting, so only this file sets it; servers before 2.10 do not know it.

use crate::error::Result;
use crate::exchange::is_healthy;
use crate::layout::{remove_folder, write_private};
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::spec::{Nats, NatsVersion};

pub(crate) const USER: &str = "anabranch";

pub(crate) fn prepare(managed: &ManagedServer) -> Result<()> {
    remove_folder(&managed.folder.join("jetstream"))
}

pub(crate) fn launch(managed: &ManagedServer, settings: &Nats, flags: Vec<String>) -> Result<Launch> {
    let program = managed.programs.nats(settings.version)?;
    let file = managed.folder.join("nats.conf");
    write_private(&file, &configuration(managed, settings))?;
    let mut arguments = vec!["-c".to_owned(), file.display().to_string()];
    arguments.extend(flags);
    Ok(Launch { program, arguments, environment: Vec::new() })
}

fn configuration(managed: &ManagedServer, settings: &Nats) -> String {
    let record = &managed.record;
    let certificates = &managed.certificates;
    let mut lines = vec![
        format!("server_name: \"{}\"", managed.name()),
        format!("listen: \"127.0.0.1:{}\"", record.port),
        format!("http: \"127.0.0.1:{}\"", record.second_port),
        format!("log_file: \"{}\"", managed.log_file().display()),
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
            managed.folder.join("jetstream").display(),
            settings.store_bytes
        ));
    }
    lines.extend(settings.configuration.iter().cloned());
    lines.join("\n") + "\n"
}

/// Whether `/healthz` answers 200, which waits for the streams.
pub(crate) fn is_ready(managed: &ManagedServer) -> bool {
    is_healthy(managed.record.second_port, "/healthz")
}
