//! Fetches programs of servers ahead of the stack that runs them.

use crate::error::Result;
use crate::layout::Layout;
use crate::programs::Programs;
use crate::spec::{Kind, ServerSpec};

/// Variable by which a program that has shown the address of the demo's page tells the demo its port.
pub const PAGE_PORT_VARIABLE: &str = "ANABRANCH_DEMO_PAGE_PORT";

/// Finds or installs the programs of these servers, one kind after the other, and starts none. A stack that starts
/// meanwhile waits for an installation that it needs, and finds the others.
pub fn fetch(layout: &Layout, servers: &[ServerSpec]) -> Result<()> {
    let programs = Programs::of(layout);
    for server in servers {
        match &server.kind {
            Kind::MariaDb(version, _) => programs.mariadb(*version).map(drop),
            Kind::MySql(_) => programs.mysql().map(drop),
            Kind::Nats(nats) => programs.nats(nats.version).map(drop),
            Kind::Redis(_) => programs.redis().map(drop),
            Kind::Search(_) => programs.search().map(drop),
            Kind::Prometheus(_) => programs.prometheus().map(drop),
        }?;
    }
    Ok(())
}
