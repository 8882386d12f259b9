//! `dispatch take-in`: settles the coupons that a coupon system says it gave, in a ledger that an operator restored
//! from an older copy.
//!
//! A statement is a page of `GET /v1/coupons/given` (`docs/coupon-system.md`). It says no day. So a coupon counts for
//! the day on which it was given, or else for the last day before it that belongs to its occurrence.

use std::path::PathBuf;
use std::sync::Arc;

use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{Candidate, LAST_WORD, Member, RunKey};
use anabranch_coupons::restored::{self, GivenCoupon};
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::Occurrence;
use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;
use serde::Deserialize;

use super::refused;
use crate::coupons::{LedgerRegister, Process};
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::output;
use crate::wiring::Wiring;

/// Days after its day on which a catch-up still gives a coupon, at most.
const DAYS_LATE_MAX: usize = 31;

/// Files of the statement.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Pages of the coupon system's statement, from before the copy was made up to now
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Say what would be settled, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// A page of the coupon system's statement.
#[derive(Debug, Deserialize)]
struct Page {
    gifts: Vec<Gift>,
}

#[derive(Debug, Deserialize)]
struct Gift {
    user: String,
    programme: String,
    occurrence: String,
    coupon: String,
    given_at_ms: i64,
}

pub(super) async fn run(
    wiring: &Wiring,
    programmes: &[Programme],
    arguments: &Arguments,
) -> Result<Exit, Fault> {
    let mut statement = Vec::new();
    let mut others = 0u64;
    for file in &arguments.files {
        for gift in page(file)?.gifts {
            match programmes.iter().find(|programme| *programme.name == *gift.programme) {
                Some(programme) => statement.push(given(programme, &gift).ok_or_else(|| {
                    refused(
                        format!("statement {}", file.display()),
                        "a coupon has no user, day or occurrence",
                    )
                    .needs("pages as the coupon system writes them")
                })?),
                None => others += 1,
            }
        }
    }
    let coupons = statement.len();
    let (verb, left) =
        if arguments.dry_run { ("would be", "changes nothing") } else { ("were", "begins anew") };
    if !arguments.dry_run {
        let ledger = wiring.coupon_ledger().await?;
        let register = LedgerRegister(wiring.clone());
        let command = CommandText::of("dispatch take-in").counted("", arguments.files.len(), "file").text();
        let work = async { restored::take_in(&ledger, &register, &Process, &statement).await };
        let after = |_: &()| format!("{coupons} coupons were settled");
        recorded(wiring, &Actor::of_command(), (command, None), work, after).await?;
    }
    _ = output::line(&format!(
        "{coupons} coupons {verb} settled, {others} are of other programmes; the ledger {left}"
    ));
    Ok(Exit::Success)
}

fn page(file: &PathBuf) -> Result<Page, Fault> {
    let subject = || format!("statement {}", file.display());
    let text = std::fs::read_to_string(file)
        .map_err(|error| refused(subject(), "it cannot be read").needs("a readable file").caused_by(error))?;
    // The parser's error would quote a value.
    serde_json::from_str(&text).map_err(|_| {
        refused(subject(), "it is not a page of the coupon system's statement")
            .needs("JSON with a list `gifts`")
    })
}

fn given(programme: &Programme, gift: &Gift) -> Option<GivenCoupon> {
    let occurrence: Occurrence = gift.occurrence.parse().ok()?;
    let given_at = Timestamp::from_millisecond(gift.given_at_ms).ok()?;
    let day = day_of(given_at.to_zoned(programme.time_zone.clone()).date(), occurrence)?;
    Some(GivenCoupon {
        candidate: Candidate {
            run: RunKey { programme: programme.name.clone(), day },
            member: Member { user: gift.user.parse().ok()?, calendar: occurrence.calendar },
            wave: LAST_WORD,
        },
        coupon: Arc::from(&*gift.coupon),
    })
}

/// Returns the last day up to `given_on` that celebrates the occurrence; `None` beyond [`DAYS_LATE_MAX`] days.
fn day_of(given_on: Date, occurrence: Occurrence) -> Option<Date> {
    let days = std::iter::successors(Some(given_on), |day| day.yesterday().ok()).take(DAYS_LATE_MAX);
    days.into_iter().find(|day| Occurrence::of(occurrence.calendar, *day) == Some(occurrence))
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn a_coupon_that_was_given_after_new_year_counts_for_the_old_year_if_its_key_says_so() {
        let of = |text: &str, day| day_of(day, text.parse().unwrap());
        assert_eq!(of("solar:2027", date(2027, 5, 4)), Some(date(2027, 5, 4)));
        assert_eq!(of("solar:2027", date(2028, 1, 3)), Some(date(2027, 12, 31)));
        assert_eq!(of("solar:2027", date(2028, 5, 4)), None);
        // The lunar year 2026 ends on 2027-02-05.
        assert_eq!(of("lunar:2026", date(2027, 2, 7)), Some(date(2027, 2, 5)));
    }
}
