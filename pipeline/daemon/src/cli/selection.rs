//! Selects the lanes that a command means.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::LaneId;
use clap::Args;

use crate::observe::lanes;
use crate::wiring::Wiring;

/// The lanes of a projection, or some of them.
#[derive(Debug, Args)]
pub struct Selection {
    /// Projection whose lanes are meant
    #[arg(long)]
    pub projection: String,
    /// Only lanes of this source. May be repeated
    #[arg(long = "source", value_name = "NAME")]
    pub sources: Vec<String>,
    /// Only lanes of this target. May be repeated
    #[arg(long = "target", value_name = "NAME")]
    pub targets: Vec<String>,
}

impl Selection {
    /// Returns the selected lanes of the configuration; a fault with the code `refused` if there are none.
    pub fn lanes(&self, wiring: &Wiring, refused: Code) -> Result<Vec<LaneId>, Fault> {
        wiring.projection(&self.projection)?;
        for source in &self.sources {
            wiring.source(source)?;
        }
        let is_wanted = |names: &[String], name: &String| names.is_empty() || names.contains(name);
        let mut lanes = lanes(wiring.config());
        lanes.retain(|id| {
            id.projection == self.projection
                && is_wanted(&self.sources, &id.source)
                && is_wanted(&self.targets, &id.target)
        });
        if lanes.is_empty() {
            let found = "no lane of the configuration is meant";
            return Err(Fault::new(refused, format!("projection {}", self.projection), found)
                .needs("a projection, source and target that belong together"));
        }
        Ok(lanes)
    }
}
