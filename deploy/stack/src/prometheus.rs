//! Prometheus servers: configuration, readiness. Each scrapes one daemon, with the documented rules unless its
//! specification has others. It also scrapes the targets in `further.json` of its folder, which may come and go.
//!
//! A server has neither TLS nor accounts: it listens on 127.0.0.1 and stores only figures.

use crate::error::Result;
use crate::exchange::is_healthy;
use crate::layout::{make_folder, remove_folder, write_private};
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::spec::Prometheus;

const RULES: &str = include_str!("../../prometheus/rules.yml");

pub(crate) fn prepare(managed: &ManagedServer) -> Result<()> {
    let data = managed.folder.join("data");
    remove_folder(&data)?;
    make_folder(&data)
}

pub(crate) fn launch(managed: &ManagedServer, settings: &Prometheus, flags: Vec<String>) -> Result<Launch> {
    let program = managed.programs.prometheus()?;
    write_private(&managed.folder.join("rules.yml"), settings.rules.as_deref().unwrap_or(RULES))?;
    let file = managed.folder.join("prometheus.yml");
    write_private(&file, &configuration(settings))?;
    let mut arguments = vec![
        format!("--config.file={}", file.display()),
        format!("--storage.tsdb.path={}", managed.folder.join("data").display()),
        format!("--web.listen-address=127.0.0.1:{}", managed.record.port),
    ];
    arguments.extend(flags);
    Ok(Launch { program: program.file, arguments, environment: program.environment })
}

fn configuration(settings: &Prometheus) -> String {
    let Prometheus { scraped_port, scrape_seconds, .. } = settings;
    [
        "global:".to_owned(),
        format!("  scrape_interval: {scrape_seconds}s"),
        format!("  evaluation_interval: {scrape_seconds}s"),
        "rule_files: [rules.yml]".to_owned(),
        "scrape_configs:".to_owned(),
        "  - job_name: anabranch".to_owned(),
        format!("    static_configs: [{{ targets: ['127.0.0.1:{scraped_port}'] }}]"),
        "    file_sd_configs: [{ files: [further.json], refresh_interval: 5s }]".to_owned(),
    ]
    .join("\n")
        + "\n"
}

/// Whether the server reports readiness: its database is open, and queries are answered.
pub(crate) fn is_ready(managed: &ManagedServer) -> bool {
    is_healthy(managed.record.port, "/-/ready")
}
