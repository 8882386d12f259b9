//! NATS servers: configuration, readiness.
//!
//! `sync_interval: always` makes JetStream answer a publish only after fsync: a power cut takes nothing back. No client
//! can see that setting, so only this file sets it; servers before 2.10 do not know it. The documented users come from
//! the file in `deploy/grants`.

use crate::error::Result;
use crate::exchange::is_healthy;
use crate::layout::{remove_folder, write_private};
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::spec::{Nats, NatsVersion};

pub(crate) const USER: &str = "anabranch";
/// The user of `setup`, with the password of [`USER`].
pub(crate) const SETUP_USER: &str = "anabranch_setup";

const ACCOUNTS: &str = include_str!("../../grants/nats-accounts.conf");

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
        users(settings, &record.password),
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
        let cipher = match settings.accounts_of {
            Some(_) => format!("cipher: chachapoly, key: \"{}\", ", record.admin_password),
            None => String::new(),
        };
        lines.push(format!(
            "jetstream {{ store_dir: \"{}\", {sync}{cipher}max_memory_store: 256MB, max_file_store: {} }}",
            managed.folder.join("jetstream").display(),
            settings.store_bytes
        ));
    }
    lines.extend(settings.configuration.iter().cloned());
    lines.join("\n") + "\n"
}

/// Returns the lines about users: the documented ones of an installation, or one who may do everything.
fn users(settings: &Nats, password: &str) -> String {
    match &settings.accounts_of {
        Some(installation) => ACCOUNTS
            .replace("{nats_password}", password)
            .replace("{nats_setup_password}", password)
            .replace("NAME", installation),
        None => format!("authorization {{ users: [ {{ user: \"{USER}\", password: \"{password}\" }} ] }}"),
    }
}

/// Whether `/healthz` answers 200, which waits for the streams.
pub(crate) fn is_ready(managed: &ManagedServer) -> bool {
    is_healthy(managed.record.second_port, "/healthz")
}
