//! Proves derived stores equal to their sources.
//!
//! Independent of the product: it shares no code with reader, projector or target, only the documented rules. Each kind
//! of store is a [`Layer`]; an [`Audit`] compares one with the sources that it comes from.

mod birthdays;
mod compare;
mod comparison;
mod drain;
mod mapping;
mod scratch;
mod spot;
mod tables;

use std::collections::BTreeMap;

pub use self::birthdays::{BirthdayLayer, DerivedLayout};
pub use self::comparison::{Comparison, Differences, Example};
pub use self::drain::{Drained, drain, drain_and_compare};
pub use self::mapping::MappingLayer;
pub use self::spot::SpotCheck;
pub(crate) use self::tables::DerivedTables;
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::topology::{Place, Topology};

/// Tables read by one statement.
const UNION_TABLES: usize = 61;

/// A kind of derived store, with where it is.
#[derive(Debug, Clone)]
pub enum Layer {
    Birthday(BirthdayLayer),
    Mapping(MappingLayer),
}

/// A derived layer and the sources that it comes from.
#[derive(Debug, Clone)]
pub struct Audit {
    pub topology: Topology,
    pub layer: Layer,
}

/// Calls the same function for each kind of layer.
macro_rules! each {
    ($layer:expr, $inner:ident => $call:expr) => {
        match $layer {
            Layer::Birthday($inner) => $call,
            Layer::Mapping($inner) => $call,
        }
    };
}

impl Audit {
    /// The projection that fills the layer, as the demo's configuration names it.
    pub fn projection(&self) -> &'static str {
        match self.layer {
            Layer::Birthday(_) => "birthday",
            Layer::Mapping(_) => "mapping",
        }
    }

    /// The targets whose progress says how far the layer is.
    pub fn targets(&self) -> &[Endpoint] {
        each!(&self.layer, layer => layer.targets())
    }

    /// Compares every derived row with the sources. Both sides must stand still meanwhile.
    pub async fn compare(&self) -> Result<Comparison> {
        each!(&self.layer, layer => compare::compare(&self.topology, layer).await)
    }

    /// Checks one source table while everything runs.
    pub async fn spot_check(&self, place: Place) -> Result<SpotCheck> {
        each!(&self.layer, layer => spot::spot_check(&self.topology, layer, place).await)
    }

    /// Rows of each derived database, counted now.
    pub async fn count_rows(&self) -> Result<BTreeMap<String, u64>> {
        each!(&self.layer, layer => tables::count_rows(layer).await)
    }
}
