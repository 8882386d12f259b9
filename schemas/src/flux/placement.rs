//! The place of a document: twelve rules that derive it from the parent's identifier.
//!
//! A [`StorageAddress`] is three parts of an identifier: side (main or fail-over), user partition and month. Captures,
//! cancellations and refunds never fail over by themselves: a parent in main means main. Every document has the region
//! of its parent. A [`Misplacement`] is a difference between an identifier and its rule; this module does not check the
//! content of a source's tables.

use jiff::civil::Date;
use thiserror::Error;

use crate::flux::id::{FluxId, Level, Month, Region, Side};

/// The kind of a document, as far as its place depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Recharge,
    Capture,
    Cancel,
    Refund,
    Withdrawal,
    /// One movement of any composite.
    Atom,
    RechargeClearing,
    RefundClearing,
    ReturnedRefundClearing,
    Chargeback,
    ChargebackReversal,
    WithdrawalAtom,
}

/// The three parts of an identifier that say where its document is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StorageAddress {
    pub side: Side,
    pub partition: u8,
    pub month: Month,
}

impl StorageAddress {
    /// Returns the place that an identifier names.
    pub fn of(id: &FluxId) -> Self {
        let parts = id.parts();
        Self { side: parts.side, partition: parts.partition, month: parts.month }
    }

    /// Returns the place of a recharge: it begins a chain, in the month of its date, and may enter the fail-over
    /// database.
    pub fn of_recharge(date: Date, partition: u8, side: Side) -> Self {
        Self { side, partition, month: Month::of_date(date) }
    }

    /// Returns the place of a withdrawal: the user partition only, without a month, never in the fail-over database.
    pub fn of_withdrawal(partition: u8) -> Self {
        Self { side: Side::Main, partition, month: Month::No }
    }
}

/// An identifier that cannot be the parent of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UnfitParent {
    #[error("a {} follows nothing; its table comes from its date and user partition", .0.name())]
    FollowsNothing(Kind),
    #[error("a {} follows {}, a composite, and digit 14 of this parent is 1 (atom)", .0.name(), .0.parent())]
    IsAtom(Kind),
    #[error("a {} follows {}, which has a month (00 to 11) in digits 18 to 19, and this parent has 99", .0.name(), .0.parent())]
    HasNoMonth(Kind),
    #[error("a {} follows {}, which has 99 in digits 18 to 19, and this parent has a month", .0.name(), .0.parent())]
    HasMonth(Kind),
    #[error("a {} follows {}, which lies in main, and digit 17 of this parent is 1 (fail-over)", .0.name(), .0.parent())]
    FailedOver(Kind),
}

/// One difference between an identifier and the rule of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Misplacement {
    /// A chain of documents stays in the region of its first one.
    #[error("digit 10 (region) is {}; its parent has {}", found.digit(), expected.digit())]
    Region { expected: Region, found: Region },
    #[error("digit 14 (atom or composite) says {}; its kind is {}", found.name(), expected.name())]
    Level { expected: Level, found: Level },
    #[error("digit 17 says fail-over and its parent lies in main; a {} never fails over by itself", kind.name())]
    FailedOverByItself { kind: Kind },
    #[error("digit 17 says {}; expected: {}", found.name(), expected.name())]
    Side { expected: Side, found: Side },
    #[error("digits 20 to 21 (user partition) are {found:02}; expected: {expected:02}")]
    Partition { expected: u8, found: u8 },
    #[error("digits 18 to 19 (month) are {:02}; expected: {:02}", found.digits(), expected.digits())]
    Month { expected: Month, found: Month },
}

impl Misplacement {
    /// Returns the `reason` of a count.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Region { .. } => "region",
            Self::Level { .. } => "level",
            Self::FailedOverByItself { .. } => "failed_over_by_itself",
            Self::Side { .. } => "side",
            Self::Partition { .. } => "partition",
            Self::Month { .. } => "month",
        }
    }
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Self::Recharge,
        Self::Capture,
        Self::Cancel,
        Self::Refund,
        Self::Withdrawal,
        Self::Atom,
        Self::RechargeClearing,
        Self::RefundClearing,
        Self::ReturnedRefundClearing,
        Self::Chargeback,
        Self::ChargebackReversal,
        Self::WithdrawalAtom,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Recharge => "recharge",
            Self::Capture => "capture",
            Self::Cancel => "cancel",
            Self::Refund => "refund",
            Self::Withdrawal => "withdrawal",
            Self::Atom => "atom",
            Self::RechargeClearing => "recharge-clearing",
            Self::RefundClearing => "refund-clearing",
            Self::ReturnedRefundClearing => "returned-refund-clearing",
            Self::Chargeback => "chargeback",
            Self::ChargebackReversal => "chargeback-reversal",
            Self::WithdrawalAtom => "withdrawal-atom",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the level of this kind. Clearings, chargebacks and their reversals are atoms, as the source document
    /// says.
    pub fn level(self) -> Level {
        match self {
            Self::Recharge | Self::Capture | Self::Cancel | Self::Refund | Self::Withdrawal => {
                Level::Composite
            }
            Self::Atom
            | Self::RechargeClearing
            | Self::RefundClearing
            | Self::ReturnedRefundClearing
            | Self::Chargeback
            | Self::ChargebackReversal
            | Self::WithdrawalAtom => Level::Atom,
        }
    }

    /// Returns the kind of its parent in words.
    pub fn parent(self) -> &'static str {
        match self {
            Self::Recharge | Self::Withdrawal => "nothing",
            Self::Atom => "its composite",
            Self::WithdrawalAtom => "its withdrawal",
            Self::RefundClearing | Self::ReturnedRefundClearing => "its refund",
            Self::Capture
            | Self::Cancel
            | Self::Refund
            | Self::RechargeClearing
            | Self::Chargeback
            | Self::ChargebackReversal => "its recharge",
        }
    }

    /// Returns the rule in words.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Recharge => "main or fail-over, the user's partition, the month of its date",
            Self::Withdrawal => "main, the user's partition, no month (99)",
            Self::Atom => "main or fail-over, user partition and month of its composite",
            Self::Capture | Self::Cancel => {
                "main or fail-over, user partition and month of its recharge; it never fails over by itself"
            }
            Self::Refund => {
                "main or fail-over and user partition of its recharge, no month (99); it never fails over by itself"
            }
            Self::RechargeClearing => "main or fail-over, user partition and month of its recharge",
            Self::RefundClearing | Self::ReturnedRefundClearing => {
                "main or fail-over and user partition of its refund, no month (99)"
            }
            Self::Chargeback | Self::ChargebackReversal => {
                "main or fail-over and user partition of its recharge, no month (99)"
            }
            Self::WithdrawalAtom => "main, user partition of its withdrawal, no month (99)",
        }
    }

    /// Returns the place of a new document of this kind below a parent.
    pub fn address_below(self, parent: &FluxId) -> Result<StorageAddress, UnfitParent> {
        self.check_parent(parent)?;
        let above = StorageAddress::of(parent);
        Ok(match self {
            Self::Recharge | Self::Withdrawal => return Err(UnfitParent::FollowsNothing(self)),
            Self::Atom | Self::Capture | Self::Cancel | Self::RechargeClearing => above,
            Self::Refund
            | Self::RefundClearing
            | Self::ReturnedRefundClearing
            | Self::Chargeback
            | Self::ChargebackReversal => StorageAddress { month: Month::No, ..above },
            Self::WithdrawalAtom => StorageAddress::of_withdrawal(above.partition),
        })
    }

    /// Refuses a parent that no document of this kind can have.
    fn check_parent(self, parent: &FluxId) -> Result<(), UnfitParent> {
        let parts = parent.parts();
        let has_month = parts.month != Month::No;
        match self {
            Self::Recharge | Self::Withdrawal => Err(UnfitParent::FollowsNothing(self)),
            _ if parts.level == Level::Atom => Err(UnfitParent::IsAtom(self)),
            Self::Atom => Ok(()),
            Self::RefundClearing | Self::ReturnedRefundClearing if has_month => {
                Err(UnfitParent::HasMonth(self))
            }
            Self::WithdrawalAtom if has_month => Err(UnfitParent::HasMonth(self)),
            Self::WithdrawalAtom if parts.side == Side::FailOver => Err(UnfitParent::FailedOver(self)),
            Self::RefundClearing | Self::ReturnedRefundClearing | Self::WithdrawalAtom => Ok(()),
            _ if !has_month => Err(UnfitParent::HasNoMonth(self)),
            _ => Ok(()),
        }
    }

    /// Returns whether [`Self::audit`] finds no difference. Almost every document is where it belongs, so this is what
    /// an audit costs.
    pub fn is_in_place(self, id: &FluxId, parent: Option<&FluxId>) -> bool {
        let expected = match parent {
            Some(parent) => self.address_below(parent),
            None => Ok(self.place_alone(id)),
        };
        let has_region = parent.is_none_or(|parent| parent.parts().region == id.parts().region);
        has_region && id.parts().level == self.level() && expected == Ok(StorageAddress::of(id))
    }

    /// Returns all differences between an identifier of this kind and its rule. `parent` is the parent's identifier;
    /// without it only parts that need no parent are compared.
    pub fn audit(self, id: &FluxId, parent: Option<&FluxId>) -> Result<Vec<Misplacement>, UnfitParent> {
        let (found, level) = (StorageAddress::of(id), id.parts().level);
        let region = id.parts().region;
        let of_parent = parent.map_or(region, |parent| parent.parts().region);
        let expected = match parent {
            Some(parent) => self.address_below(parent)?,
            None => self.place_alone(id),
        };
        let mut misplacements = Vec::new();
        if (level, region, found) == (self.level(), of_parent, expected) {
            return Ok(misplacements);
        }
        if region != of_parent {
            misplacements.push(Misplacement::Region { expected: of_parent, found: region });
        }
        if level != self.level() {
            misplacements.push(Misplacement::Level { expected: self.level(), found: level });
        }
        if found.side != expected.side {
            let never = matches!(self, Self::Capture | Self::Cancel | Self::Refund);
            misplacements.push(match never && expected.side == Side::Main {
                true => Misplacement::FailedOverByItself { kind: self },
                false => Misplacement::Side { expected: expected.side, found: found.side },
            });
        }
        if found.partition != expected.partition {
            misplacements
                .push(Misplacement::Partition { expected: expected.partition, found: found.partition });
        }
        if found.month != expected.month {
            misplacements.push(Misplacement::Month { expected: expected.month, found: found.month });
        }
        Ok(misplacements)
    }

    /// Returns the place that the identifier's own parts demand; all other parts are taken as they are.
    fn place_alone(self, id: &FluxId) -> StorageAddress {
        let own = StorageAddress::of(id);
        let any_month = match own.month {
            Month::No => Month::of_date(id.parts().date),
            month => month,
        };
        match self {
            Self::Recharge => StorageAddress::of_recharge(id.parts().date, own.partition, own.side),
            Self::Withdrawal | Self::WithdrawalAtom => StorageAddress::of_withdrawal(own.partition),
            Self::Capture | Self::Cancel | Self::RechargeClearing => {
                StorageAddress { month: any_month, ..own }
            }
            Self::Refund
            | Self::RefundClearing
            | Self::ReturnedRefundClearing
            | Self::Chargeback
            | Self::ChargebackReversal => StorageAddress { month: Month::No, ..own },
            Self::Atom => own,
        }
    }
}

#[cfg(test)]
mod tests;
