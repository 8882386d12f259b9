//! The key `flux.settlement_atoms`: the month digits in the names of the settlement tables of atoms.

use anabranch_schemas::flux::table::AtomSettlement;
use serde::Deserialize;

/// The digits, as the file has them.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) enum SettlementAtoms {
    #[serde(rename = "99")]
    NoMonth,
    #[serde(rename = "00")]
    AsWritten,
}

impl From<SettlementAtoms> for AtomSettlement {
    fn from(digits: SettlementAtoms) -> Self {
        match digits {
            SettlementAtoms::NoMonth => Self::NoMonth,
            SettlementAtoms::AsWritten => Self::AsWritten,
        }
    }
}
