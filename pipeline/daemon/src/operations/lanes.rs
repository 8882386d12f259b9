//! The lanes that an operation means.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::records::LaneId;

use super::CommandText;
use crate::wiring::{Wiring, lanes};

/// The lanes of a projection, or some of them.
#[derive(Debug, Clone, Default)]
pub struct LaneSelection {
    pub projection: String,
    /// Only lanes of these sources; empty = of every source.
    pub sources: Vec<String>,
    /// Only lanes of these targets; empty = of every target.
    pub targets: Vec<String>,
}

impl LaneSelection {
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
            let found = "no configured lane has the given projection, source and target";
            return Err(Fault::new(refused, format!("projection {}", self.projection), found)
                .needs("a projection, source and target that belong together"));
        }
        Ok(lanes)
    }

    /// Adds the selection's options to the text of a command.
    pub fn add_to(&self, text: CommandText) -> CommandText {
        text.option("--projection", Some(&self.projection))
            .options("--source", &self.sources)
            .options("--target", &self.targets)
    }
}

/// Returns the names of lanes, for sentences.
pub fn names(lanes: &[LaneId]) -> String {
    lanes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
