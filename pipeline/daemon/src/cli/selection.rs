//! Options that select the lanes that a command means.

use clap::Args;

use crate::operations::LaneSelection;

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
    /// Returns the selection without its options' form.
    pub fn plain(&self) -> LaneSelection {
        LaneSelection {
            projection: self.projection.clone(),
            sources: self.sources.clone(),
            targets: self.targets.clone(),
        }
    }
}
