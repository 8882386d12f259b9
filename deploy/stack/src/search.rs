//! OpenSearch nodes: security files, settings, readiness.
//!
//! A node is a cluster of its own, with TLS on both ports. Its accounts exist from the first moment, in files that the
//! node reads at its first start; the product's roles are the documented file in `deploy/grants`.

use std::fs;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::error::{FileContext, Result, StackError};
use crate::exchange::exchange;
use crate::layout::{make_folder, remove_folder, write_private};
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::programs::SearchPrograms;
use crate::spec::Search;

pub(crate) const USER: &str = "anabranch_search";
/// The account that creates and removes indexes; its password is the same as [`USER`]'s.
pub(crate) const SETUP_USER: &str = "anabranch_search_setup";
pub(crate) const ADMIN_USER: &str = "admin";

const ROLES: &str = include_str!("../../grants/opensearch-roles.yml");
const ROLES_MAPPING: &str = "---\n_meta:\n  type: rolesmapping\n  config_version: 2\n\
    all_access:\n  users: [admin]\nanabranch_search:\n  users: [anabranch_search]\n\
    anabranch_search_setup:\n  users: [anabranch_search_setup]\n";
/// The lowest possible cost: these passwords are random, and each new connection pays for it.
const BCRYPT_COST: u32 = 4;

pub(crate) fn prepare(managed: &ManagedServer) -> Result<()> {
    for folder in ["data", "config", "tmp"] {
        remove_folder(&managed.folder.join(folder))?;
        make_folder(&managed.folder.join(folder))?;
    }
    let config = managed.folder.join("config");
    let certificates = &managed.certificates;
    for file in [certificates.ca(), certificates.server(), certificates.server_key()] {
        let name = file.file_name().unwrap_or_default();
        fs::copy(&file, config.join(name)).file("copy", &file)?;
    }
    let security = config.join("opensearch-security");
    make_folder(&security)?;
    for file in managed.programs.search()?.security_files()? {
        let name = file.file_name().unwrap_or_default();
        fs::copy(&file, security.join(name)).file("copy", &file)?;
    }
    write_private(&security.join("internal_users.yml"), &users(managed)?)?;
    write_private(&security.join("roles.yml"), ROLES)?;
    write_private(&security.join("roles_mapping.yml"), ROLES_MAPPING)
}

fn users(managed: &ManagedServer) -> Result<String> {
    let mut text = "---\n_meta:\n  type: internalusers\n  config_version: 2\n".to_owned();
    let (password, admin_password) = (&managed.record.password, &managed.record.admin_password);
    let accounts = [(USER, password), (SETUP_USER, password), (ADMIN_USER, admin_password)];
    for (user, password) in accounts {
        let hash = bcrypt::hash(password, BCRYPT_COST).map_err(StackError::PasswordHash)?;
        text.push_str(&format!("{user}:\n  hash: \"{hash}\"\n"));
    }
    Ok(text)
}

pub(crate) fn launch(managed: &ManagedServer, settings: &Search, flags: Vec<String>) -> Result<Launch> {
    let SearchPrograms { java, class_path, environment, .. } = managed.programs.search()?;
    let folder = managed.folder.display();
    let heap = settings.heap_mib;
    let mut arguments = vec![
        format!("-Xms{heap}m"),
        format!("-Xmx{heap}m"),
        "-XX:+UseSerialGC".to_owned(),
        "-XX:+ExitOnOutOfMemoryError".to_owned(),
        format!("-XX:TieredStopAtLevel={}", compiler_level(managed)),
        format!("-Djava.io.tmpdir={folder}/tmp"),
        "-Dlog4j2.disable.jmx=true".to_owned(),
        "-Dlog4j2.level=INFO".to_owned(),
        "-Dlog4j.shutdownHookEnabled=false".to_owned(),
        "-cp".to_owned(),
        class_path,
        "SearchNode".to_owned(),
    ];
    arguments.extend(node_settings(managed));
    arguments.extend(flags);
    Ok(Launch { program: java, arguments, environment })
}

/// Returns the highest level of the compiler. A node of a test ends before the optimising compiler has earned its own
/// time, which is half of a start; any other node, such as a benchmark's, has it.
fn compiler_level(managed: &ManagedServer) -> u8 {
    const QUICK: u8 = 1;
    const OPTIMISING: u8 = 4;
    if managed.record.spec.skips_fsync { QUICK } else { OPTIMISING }
}

/// Returns settings as `name=value`; a later one wins.
fn node_settings(managed: &ManagedServer) -> Vec<String> {
    let folder = managed.folder.display();
    let mut settings = vec![
        format!("cluster.name={}", managed.name()),
        format!("node.name={}", managed.name()),
        "discovery.type=single-node".to_owned(),
        "network.host=127.0.0.1".to_owned(),
        format!("http.port={}", managed.record.port),
        format!("transport.port={}", managed.record.second_port),
        format!("path.home={folder}"),
        format!("path.data={folder}/data"),
        format!("path.logs={folder}"),
        // A mistyped index becomes an error, and the machine's full disk is no reason to refuse writes.
        "action.auto_create_index=false".to_owned(),
        "cluster.routing.allocation.disk.threshold_enabled=false".to_owned(),
    ];
    let security = |setting: &str| format!("plugins.security.{setting}");
    for port in ["ssl.transport", "ssl.http"] {
        settings.push(security(&format!("{port}.pemcert_filepath=server.pem")));
        settings.push(security(&format!("{port}.pemkey_filepath=server-key.pem")));
        settings.push(security(&format!("{port}.pemtrustedcas_filepath=ca.pem")));
    }
    settings.push(security(&format!("ssl.http.enabled={}", !managed.record.spec.is_plain)));
    settings.extend(
        [
            "ssl.transport.enforce_hostname_verification=false",
            "allow_default_init_securityindex=true",
            "nodes_dn=CN=localhost",
            "authcz.admin_dn=CN=nobody",
            "restapi.roles_enabled=all_access",
        ]
        .map(security),
    );
    settings
}

/// Whether the product's account may query the node's health and gets it: accounts are loaded by then.
pub(crate) fn is_ready(managed: &ManagedServer) -> bool {
    let login = BASE64_STANDARD.encode(format!("{USER}:{}", managed.record.password));
    let question = format!(
        "GET /_cluster/health?wait_for_status=yellow&timeout=2s HTTP/1.1\r\nHost: 127.0.0.1\r\n\
         Authorization: Basic {login}\r\nConnection: close\r\n\r\n"
    );
    exchange(managed, &question).is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
