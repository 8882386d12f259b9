//! Redis servers: configuration, readiness, replicas and clusters.
//!
//! The product's account comes from the documented file in `deploy/grants`. A server has one port, with TLS unless its
//! specification is plain.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Result, StackError};
use crate::exchange::exchange;
use crate::layout::{make_folder, remove_folder, write_private};
use crate::managed_server::ManagedServer;
use crate::process::Launch;
use crate::spec::{Redis, RedisRole};

pub(crate) const USER: &str = "anabranch_cache";
pub(crate) const ADMIN_USER: &str = "default";

const GRANTS: &str = include_str!("../../grants/redis-cache.acl");
/// Slots of a cluster; each key belongs to one slot.
const SLOTS: usize = 16_384;
/// Limit of forming a cluster; nodes exchange their identities within a second.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(30);
const CLUSTER_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn prepare(managed: &ManagedServer) -> Result<()> {
    let data = managed.folder.join("data");
    remove_folder(&data)?;
    make_folder(&data)
}

pub(crate) fn launch(managed: &ManagedServer, settings: &Redis, flags: Vec<String>) -> Result<Launch> {
    let program = managed.programs.redis()?;
    let file = managed.folder.join("redis.conf");
    write_private(&file, &configuration(managed, settings))?;
    let mut arguments = vec![file.display().to_string()];
    arguments.extend(flags);
    Ok(Launch { program: program.file, arguments, environment: program.environment })
}

fn configuration(managed: &ManagedServer, settings: &Redis) -> String {
    let record = &managed.record;
    let mut lines = vec![
        "bind 127.0.0.1".to_owned(),
        format!("requirepass {}", record.admin_password),
        format!("masteruser {ADMIN_USER}"),
        format!("masterauth {}", record.admin_password),
        format!("dir {}", managed.folder.join("data").display()),
        format!("logfile {}", managed.log_file().display()),
        "appendonly yes".to_owned(),
        "appendfsync everysec".to_owned(),
        "save \"\"".to_owned(),
        "daemonize no".to_owned(),
        "maxmemory 256mb".to_owned(),
        "maxmemory-policy noeviction".to_owned(),
    ];
    lines.extend(port(managed));
    match settings.role {
        RedisRole::Standalone => {}
        RedisRole::Replica { of } => lines.push(format!("replicaof 127.0.0.1 {of}")),
        RedisRole::ClusterNode => {
            lines.push("cluster-enabled yes".to_owned());
            lines.push(format!("cluster-port {}", record.second_port));
        }
    }
    lines.extend(accounts(&record.password));
    lines.join("\n") + "\n"
}

/// Returns the configuration lines of the port.
fn port(managed: &ManagedServer) -> Vec<String> {
    let (port, certificates) = (managed.record.port, &managed.certificates);
    if managed.record.spec.is_plain {
        return vec![format!("port {port}")];
    }
    vec![
        "port 0".to_owned(),
        format!("tls-port {port}"),
        format!("tls-cert-file {}", certificates.server().display()),
        format!("tls-key-file {}", certificates.server_key().display()),
        format!("tls-ca-cert-file {}", certificates.ca().display()),
        "tls-auth-clients no".to_owned(),
        "tls-replication yes".to_owned(),
        "tls-cluster yes".to_owned(),
    ]
}

/// Returns the documented accounts as lines of the configuration, which allows no comments after them.
fn accounts(password: &str) -> impl Iterator<Item = String> {
    GRANTS
        .lines()
        .filter(|line| line.starts_with("user "))
        // Installations of every name share the server.
        .map(move |line| line.replace("{cache_password}", password).replace("~NAME:", "~*:"))
}

/// Whether the product's account gets an answer; a server that still loads its data refuses.
pub(crate) fn is_ready(managed: &ManagedServer) -> bool {
    let hello = format!("AUTH {USER} {}\r\nPING\r\nQUIT\r\n", managed.record.password);
    exchange(managed, &hello).is_ok_and(|answer| answer == "+OK\r\n+PONG\r\n+OK\r\n")
}

/// Joins running nodes, spreads the slots evenly, and waits until every node knows it.
pub(crate) fn form_cluster(nodes: &[&ManagedServer]) -> Result<()> {
    let deadline = Instant::now() + CLUSTER_TIMEOUT;
    for (index, node) in nodes.iter().enumerate() {
        let (first, end) = (index * SLOTS / nodes.len(), (index + 1) * SLOTS / nodes.len());
        let mut commands = vec![format!("CLUSTER ADDSLOTSRANGE {first} {}", end - 1)];
        // The first node meets all others; they learn of each other through it.
        let others = if index == 0 { &nodes[1..] } else { &[] };
        commands.extend(others.iter().map(|other| {
            format!("CLUSTER MEET 127.0.0.1 {} {}", other.record.port, other.record.second_port)
        }));
        let answer = as_admin(node, &commands);
        if !answer.lines().all(|line| line == "+OK") {
            return Err(StackError::ClusterNotFormed { name: node.name().to_owned(), answer });
        }
    }
    let known = format!("cluster_known_nodes:{}\r\n", nodes.len());
    for node in nodes {
        loop {
            let answer = as_admin(node, &["CLUSTER INFO".to_owned()]);
            if answer.contains("cluster_state:ok\r\n") && answer.contains(&known) {
                break;
            }
            if Instant::now() >= deadline {
                return Err(StackError::ClusterNotFormed { name: node.name().to_owned(), answer });
            }
            thread::sleep(CLUSTER_POLL_INTERVAL);
        }
    }
    Ok(())
}

fn as_admin(node: &ManagedServer, commands: &[String]) -> String {
    let login = format!("AUTH {ADMIN_USER} {}", node.record.admin_password);
    let question = format!("{login}\r\n{}\r\nQUIT\r\n", commands.join("\r\n"));
    exchange(node, &question).unwrap_or_else(|error| error.to_string())
}
