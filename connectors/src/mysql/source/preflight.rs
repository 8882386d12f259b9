//! Everything that capture depends on, asked before the first byte.
use super::session::{Address, Session};
use anabranch_pipeline::config::{EntityConfig, SourceConfig};
use anabranch_pipeline::error::Fault;
pub async fn check(config: &SourceConfig, _entities: &[EntityConfig]) -> Vec<Fault> {
    match Session::open(&Address::of(config)).await {
        Ok(_) => vec![],
        Err(fault) => vec![fault],
    }
}
