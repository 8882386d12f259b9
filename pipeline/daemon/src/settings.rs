//! Finds and reads the configuration file.

use std::path::Path;

use anabranch_coupons::programme::Programme;
use anabranch_pipeline::config::Config;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::projections::{captured_targets, shared_tables};

use crate::coupons;

/// Reads and parses the file; every problem of it is in the error.
pub fn load(file: &Path) -> Result<Config, Vec<Fault>> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let fault = Fault::new(
            Code::ConfigUnreadable,
            format!("configuration file {}", file.display()),
            "it cannot be read",
        );
        vec![fault.needs("a readable TOML file").remedy("see deploy/anabranch.example.toml").caused_by(error)]
    })?;
    Config::parse_with(&text, |config| {
        let mut faults = captured_targets(config);
        faults.extend(shared_tables(config));
        match Programme::parse_all(&config.programmes) {
            Ok(programmes) => faults.extend(coupons::without_times_of_changes(config, &programmes)),
            Err(found) => faults.extend(found),
        }
        faults
    })
}
