//! The parts of an identifier that a caller may choose, and those that the placement rules decide.
//!
//! A recharge chooses its user partition and its side, and a withdrawal its partition; every other document follows its
//! parent. The region is a setting: two installations with separate counters never make identifiers of one region.

use anabranch_schemas::flux::id::{FluxId, Part, Parts, Region, Side};
use anabranch_schemas::flux::placement::{Kind, StorageAddress};
use anabranch_schemas::flux::years::Years;
use jiff::ToSpan;
use jiff::civil::Date;

use crate::error::{Code, Fault};

/// Days before today that a caller may date a document, at most.
pub(super) const DAYS_BACK_MAX: i32 = 7;
/// Days after today, at most: a caller's day may begin before the daemon's.
const DAYS_AHEAD_MAX: i32 = 1;
/// Data version of new identifiers, taken from the example in the source document.
pub const VERSION: u8 = 1;

/// A caller's order for identifiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FluxOrder {
    pub kind: Kind,
    /// The document that the new ones follow.
    pub parent: Option<FluxId>,
    /// User partition of recharges and withdrawals.
    pub partition: Option<u8>,
    /// Whether recharges enter the fail-over database.
    pub is_failed_over: bool,
    /// The day of the documents; `None` = today.
    pub date: Option<Date>,
    pub version: u8,
    pub business: u8,
    /// The reserved digits. With the strategy by year, the year digit replaces one of them.
    pub reserved: u8,
    /// Number of identifiers, at least 1.
    pub count: u32,
}

impl FluxOrder {
    /// Returns the day of the documents; fails for a day that no counter serves.
    pub(super) fn day(&self, today: Date) -> Result<Date, Fault> {
        let Some(date) = self.date else { return Ok(today) };
        let days = today.until(date).map_or(i32::MAX, |span| span.get_days());
        if (-DAYS_BACK_MAX..=DAYS_AHEAD_MAX).contains(&days) {
            return Ok(date);
        }
        let bound = |days: i32| today.checked_add(days.days()).unwrap_or(today);
        let (first, last) = (bound(-DAYS_BACK_MAX), bound(DAYS_AHEAD_MAX));
        Err(Fault::new(Code::FluxDateRefused, "date", format!("{date}"))
            .needs(format!("{first} to {last}"))
            .remedy("leave `date` out for today's date"))
    }

    /// Returns the first identifier of a day, with sequence 0, into which the caller puts its numbers.
    pub(super) fn template(&self, region: Region, system: u16, date: Date) -> Result<FluxId, Fault> {
        let place = self.place(region, date)?;
        let parts = Parts {
            date,
            version: self.version,
            region,
            system,
            level: self.kind.level(),
            business: self.business,
            side: place.side,
            month: place.month,
            partition: place.partition,
            reserved: self.reserved,
            sequence: 0,
        };
        FluxId::of(parts, system).map_err(|defect| {
            let text = defect.to_string();
            let (found, expected) = text.split_once("; expected: ").unwrap_or((&text, "31 digits"));
            Fault::new(Code::FluxIdMalformed, "the wanted identifier", found).needs(expected)
        })
    }

    fn place(&self, region: Region, date: Date) -> Result<StorageAddress, Fault> {
        let (kind, name) = (self.kind, self.kind.name());
        let unfit = |found: String| {
            Fault::new(Code::FluxParentUnfit, name, found).needs(format!(
                "{}: {}",
                kind.parent(),
                kind.rule()
            ))
        };
        match &self.parent {
            Some(parent) => {
                // The fault of a rule that refuses the parent comes first.
                let place = kind.address_below(parent).map_err(|error| unfit(error.to_string()))?;
                if self.partition.is_some() || self.is_failed_over {
                    let given = if self.is_failed_over { "fail_over" } else { "partition" };
                    let found = format!("`{given}` was given beside `parent`, which decides it");
                    return Err(unfit(found).remedy(format!("leave `{given}` out")));
                }
                let found = parent.parts().region;
                if found != region {
                    return Err(unfit(format!(
                        "{} of its parent is {}, and this installation makes identifiers of region {}",
                        Part::Region,
                        found.digit(),
                        region.digit()
                    ))
                    .remedy("ask the installation of that region"));
                }
                Ok(place)
            }
            None if !matches!(kind, Kind::Recharge | Kind::Withdrawal) => {
                let found = format!("`parent`, the identifier of {}, is missing", kind.parent());
                Err(unfit(found).remedy("send the parent's 31 digits"))
            }
            None => {
                let missing = || {
                    unfit("`partition` is missing".to_owned()).remedy("send the user's partition, 0 to 99")
                };
                let partition = self.partition.ok_or_else(missing)?;
                match (kind, self.is_failed_over) {
                    (Kind::Withdrawal, true) => {
                        let found = "`fail_over` was given, and a withdrawal never fails over".to_owned();
                        Err(unfit(found).remedy("leave `fail_over` out"))
                    }
                    (Kind::Withdrawal, false) => Ok(StorageAddress::of_withdrawal(partition)),
                    (_, true) => Ok(StorageAddress::of_recharge(date, partition, Side::FailOver)),
                    (_, false) => Ok(StorageAddress::of_recharge(date, partition, Side::Main)),
                }
            }
        }
    }

    /// Returns a new identifier with its year digit, if the strategy by year covers it.
    pub(super) fn with_year(&self, id: FluxId, years: Option<&Years>) -> FluxId {
        years.map_or(id, |years| years.with_year(id, self.kind, self.parent.as_ref()))
    }

    /// Returns whether identifiers that were given out with the same key are those of this order. A repetition may come
    /// after midnight: its day is then that of the first request. It may also come after the strategy by year was
    /// configured: the first request then got identifiers without a year digit.
    pub(super) fn is_as_given(&self, first: &FluxId, count: u32, years: Option<&Years>) -> bool {
        let given = first.parts();
        let is_of_day = self.date.is_none_or(|date| date == given.date);
        let wanted = self.template(given.region, given.system, given.date);
        let is_same = wanted.is_ok_and(|wanted| {
            let of_order = [wanted, self.with_year(wanted, years)];
            of_order.into_iter().any(|wanted| wanted.with_sequence(given.sequence) == Some(*first))
        });
        is_of_day && is_same && count == self.count
    }
}

#[cfg(test)]
mod tests {
    use anabranch_schemas::flux::years::{CutOver, YearDigit};
    use jiff::civil::date;

    use super::*;

    const TODAY: Date = date(2026, 11, 26);

    fn recharge(partition: u8) -> FluxOrder {
        FluxOrder {
            kind: Kind::Recharge,
            parent: None,
            partition: Some(partition),
            is_failed_over: false,
            date: None,
            version: VERSION,
            business: 1,
            reserved: 0,
            count: 1,
        }
    }

    fn made(order: &FluxOrder) -> String {
        order.template(Region::UnitedStates, 31, TODAY).unwrap().to_string()
    }

    fn refused(order: &FluxOrder) -> String {
        let fault = order.template(Region::UnitedStates, 31, TODAY).unwrap_err();
        assert!(fault.remedy_text().is_some() || fault.needed().is_some(), "{fault}");
        fault.to_string()
    }

    #[test]
    fn a_chain_of_documents_that_failed_over_stays_in_fail_over() {
        let recharge = FluxOrder { is_failed_over: true, ..recharge(5) };
        let parent = made(&recharge);
        assert_eq!(parent, "2026112610031001110050000000000");
        let below = |kind| FluxOrder {
            kind,
            parent: Some(parent.parse().unwrap()),
            partition: None,
            is_failed_over: false,
            ..recharge.clone()
        };
        let place = |order: &FluxOrder| {
            let id: FluxId = made(order).parse().unwrap();
            (id.parts().side, id.parts().partition, id.parts().month.digits())
        };
        assert_eq!(place(&below(Kind::Capture)), (Side::FailOver, 5, 10));
        assert_eq!(place(&below(Kind::Refund)), (Side::FailOver, 5, 99));
        assert_eq!(place(&below(Kind::Atom)), (Side::FailOver, 5, 10));
    }

    #[test]
    fn what_a_caller_may_not_choose_is_named() {
        let parent: FluxId = made(&recharge(5)).parse().unwrap();
        let capture = FluxOrder { kind: Kind::Capture, parent: Some(parent), partition: None, ..recharge(5) };
        let foreign = FluxId::of(Parts { region: Region::Singapore, ..*parent.parts() }, 31).unwrap();
        for (order, expected) in [
            (
                FluxOrder { parent: None, ..capture.clone() },
                "`parent`, the identifier of its recharge, is missing",
            ),
            (FluxOrder { partition: Some(5), ..capture.clone() }, "`partition` was given beside `parent`"),
            (FluxOrder { is_failed_over: true, ..capture.clone() }, "`fail_over` was given beside `parent`"),
            (FluxOrder { parent: Some(foreign), ..capture.clone() }, "digit 10 (region) of its parent is 1"),
            (FluxOrder { kind: Kind::RefundClearing, ..capture.clone() }, "this parent has a month"),
            (FluxOrder { parent: Some(parent), ..recharge(5) }, "a recharge follows nothing"),
            (FluxOrder { partition: None, ..recharge(5) }, "`partition` is missing"),
            (FluxOrder { kind: Kind::Withdrawal, is_failed_over: true, ..recharge(5) }, "never fails over"),
            (FluxOrder { version: 2, ..recharge(5) }, "digit 9 (data version) is 2"),
            (FluxOrder { partition: Some(100), ..recharge(5) }, "user partition"),
        ] {
            let reported = refused(&order);
            assert!(reported.contains(expected), "{reported}");
        }
    }

    #[test]
    fn a_date_is_today_or_one_of_the_week_before_or_tomorrow() {
        let on = |date| FluxOrder { date: Some(date), ..recharge(5) }.day(TODAY);
        assert_eq!(recharge(5).day(TODAY).unwrap(), TODAY);
        for (date, is_right) in [
            (date(2026, 11, 18), false),
            (date(2026, 11, 19), true),
            (date(2026, 11, 27), true),
            (date(2026, 11, 28), false),
            (date(2016, 6, 6), false),
        ] {
            assert_eq!(on(date).is_ok(), is_right, "{date}");
        }
        let fault = on(date(2016, 6, 6)).unwrap_err();
        assert_eq!(
            fault.to_string(),
            "[flux-date-refused] date: 2016-06-06; needed: 2026-11-19 to 2026-11-27; remedy: leave `date` out for \
             today's date"
        );
    }

    #[test]
    fn a_repetition_after_midnight_is_the_same_and_another_wish_is_not() {
        let order = FluxOrder { count: 5, ..recharge(5) };
        let first = order.template(Region::UnitedStates, 31, date(2026, 10, 31)).unwrap();
        let first = first.with_sequence(77).unwrap();
        assert!(order.is_as_given(&first, 5, None));
        assert!(!order.is_as_given(&first, 6, None));
        for other in [
            FluxOrder { partition: Some(6), ..order.clone() },
            FluxOrder { business: 2, ..order.clone() },
            FluxOrder { date: Some(TODAY), ..order.clone() },
            FluxOrder { is_failed_over: true, ..order.clone() },
        ] {
            assert!(!other.is_as_given(&first, 5, None), "{other:?}");
        }
        assert!(FluxOrder { date: Some(date(2026, 10, 31)), ..order }.is_as_given(&first, 5, None));
    }

    #[test]
    fn a_new_identifier_has_its_year_digit_and_a_repetition_across_the_configuration_is_the_same() {
        let years = Years { cut_over: CutOver::Date(date(2026, 11, 1)), digit: YearDigit::Second };
        let order = FluxOrder { reserved: 40, ..recharge(5) };
        let before = order.template(Region::UnitedStates, 31, TODAY).unwrap();
        let first = order.with_year(before, Some(&years));
        assert_eq!((first.parts().reserved, order.with_year(before, None)), (46, before));
        let capture = FluxOrder { kind: Kind::Capture, parent: Some(first), partition: None, ..recharge(5) };
        let capture = capture
            .with_year(capture.template(Region::UnitedStates, 31, date(2027, 1, 2)).unwrap(), Some(&years));
        assert_eq!((capture.parts().reserved, capture.parts().month.digits()), (6, 10));
        for given in [before, first] {
            assert!(order.is_as_given(&given, 1, Some(&years)), "{given}");
        }
        assert!(!order.is_as_given(&first, 1, None));
        let of_another_year = first.with_reserved(47).unwrap();
        assert!(!order.is_as_given(&of_another_year, 1, Some(&years)));
    }
}
