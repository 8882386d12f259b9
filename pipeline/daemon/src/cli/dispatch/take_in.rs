//! `dispatch take-in`: settles the coupons that a coupon system says it gave, in a ledger that an operator restored
//! from an older copy.
//!
//! A statement is all pages of `GET /v1/coupons/given` (`docs/coupon-system.md`). It names no day, so the ledger's rows
//! and cohorts say for which day a coupon counts ([`restored`]). The chain of tokens is that of the whole ledger, so
//! the coupons of every programme are settled, also of those that the file lacks by now.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anabranch_coupons::ports::Gift;
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::CouponKey;
use anabranch_coupons::restored::{self, GivenCoupon};
use anabranch_pipeline::error::Fault;
use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;

use super::refused;
use crate::coupons::{self, LedgerRegister, Process};
use crate::exit::Exit;
use crate::operations::{Actor, CommandText, recorded};
use crate::output;
use crate::wiring::Wiring;

/// Files of the statement.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Pages of the coupon system's statement, from before the copy was made up to now. Without a file the command
    /// asks the coupon system for them
    files: Vec<PathBuf>,
    /// Ask at once: no granter runs, and none has run for half an hour. Without a file the command refuses otherwise to
    /// ask before dispatchers have seen the restored ledger for `coupon_system.restored_wait_seconds`
    #[arg(long, conflicts_with = "files")]
    waited: bool,
    /// Say what would be settled, and change nothing
    #[arg(long, requires = "files")]
    dry_run: bool,
}

/// A page of the coupon system's statement.
#[derive(Debug, Deserialize)]
struct Page {
    gifts: Vec<PageGift>,
    /// The `after` of the page; `None` if the coupon system does not repeat it.
    after: Option<u64>,
    /// The `after` of the next page; `None` on the last page. A page without the field is not whole.
    #[serde(deserialize_with = "Option::deserialize")]
    next: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct PageGift {
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
    if arguments.files.is_empty() {
        require_waited(wiring, arguments.waited).await?;
        let coupons = coupons::mend(wiring, programmes, &Actor::of_command(), "dispatch take-in").await?;
        _ = output::line(&format!("{coupons} coupons were settled; the ledger begins anew"));
        return Ok(Exit::Success);
    }
    let mut pages = Vec::new();
    for file in &arguments.files {
        pages.push((file, page(file)?));
    }
    complete(&pages).map_err(|found| {
        refused("statement", found).needs("every page once, up to the one whose `next` is null")
    })?;
    let mut statement = Vec::new();
    for (file, page) in &pages {
        for (index, gift) in (1..).zip(&page.gifts) {
            statement.push(given(programmes, gift).ok_or_else(|| unfit(file, index))?);
        }
    }
    let coupons = statement.len();
    let is_known = |given: &&GivenCoupon| programmes.iter().any(|known| known.name == given.key.programme);
    let others = coupons - statement.iter().filter(is_known).count();
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
        "{coupons} coupons {verb} settled, {others} of them of programmes that the file lacks; the ledger {left}"
    ));
    Ok(Exit::Success)
}

/// Refuses a ledger that was not restored, and one whose wait goes on unless a person has waited.
async fn require_waited(wiring: &Wiring, has_waited: bool) -> Result<(), Fault> {
    let (ledger, register) = (wiring.coupon_ledger().await?, LedgerRegister(wiring.clone()));
    restored::require_restored(&ledger, &register).await?;
    match coupons::left_to_wait(wiring).await? {
        Some(left) if !has_waited => {
            let found =
                format!("the ledger must wait for another {} s: earlier calls may arrive", left.as_secs());
            Err(refused("dispatch take-in", found)
                .needs("a dispatcher that runs for this time, and then asks by itself")
                .remedy("stop all granters and dispatchers, wait half an hour, and add `--waited`"))
        }
        _ => Ok(()),
    }
}

fn page(file: &PathBuf) -> Result<Page, Fault> {
    let subject = || format!("statement {}", file.display());
    let text = std::fs::read_to_string(file)
        .map_err(|error| refused(subject(), "it cannot be read").needs("a readable file").caused_by(error))?;
    // The parser's error would quote a value.
    serde_json::from_str(&text).map_err(|_| {
        refused(subject(), "it is not a page of the coupon system's statement")
            .needs("JSON with a list `gifts` and with `next`, as the coupon system answered")
    })
}

/// Returns an error if a page is missing or was named twice, as far as the pages show it.
fn complete(pages: &[(&PathBuf, Page)]) -> Result<(), String> {
    let followed: BTreeSet<u64> = pages.iter().filter_map(|(_, page)| page.next).collect();
    if followed.len() + 1 != pages.len() {
        return Err(format!("{} pages have {} different next ones", pages.len(), followed.len()));
    }
    let begun: Option<BTreeSet<u64>> = pages.iter().map(|(_, page)| page.after).collect();
    let expected: BTreeSet<u64> = followed.into_iter().chain([0]).collect();
    if begun.is_some_and(|begun| begun != expected) {
        return Err("a page follows that is not among the files".to_owned());
    }
    Ok(())
}

fn unfit(file: &Path, index: u64) -> Fault {
    let found =
        format!("coupon {index} of its list has no user, no occurrence, or another year than its time");
    refused(format!("statement {}", file.display()), found)
        .needs("coupons of Anabranch's programmes, as the coupon system writes them")
        .remedy("leave out this coupon if another program asked for it; otherwise ask the coupon system's operators")
}

fn given(programmes: &[Programme], gift: &PageGift) -> Option<GivenCoupon> {
    let key = CouponKey {
        user: gift.user.parse().ok()?,
        programme: Arc::from(&*gift.programme),
        occurrence: gift.occurrence.parse().ok()?,
    };
    let given_at = Timestamp::from_millisecond(gift.given_at_ms).ok()?;
    GivenCoupon::of(Gift { key, coupon: Arc::from(&*gift.coupon), given_at }, programmes)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn given_at(occurrence: &str, at: &str, zone: &str) -> Option<jiff::civil::Date> {
        let text = format!("name = 'cakes'\ncoupon = 'cake'\ntime_zone = '{zone}'\nleap_day = 'mar1'\n");
        let programmes = Programme::parse_all(&[text.parse().unwrap()]).unwrap();
        let gift = PageGift {
            user: "7".to_owned(),
            programme: "cakes".to_owned(),
            occurrence: occurrence.to_owned(),
            coupon: "cake".to_owned(),
            given_at_ms: at.parse::<Timestamp>().unwrap().as_millisecond(),
        };
        given(&programmes, &gift).map(|given| given.latest_day)
    }

    #[test]
    fn a_coupon_that_was_given_after_new_year_counts_for_the_old_year_if_its_key_says_so() {
        let of = |occurrence: &str, at: &str| given_at(occurrence, at, "UTC");
        assert_eq!(of("solar:2027", "2027-05-04T10:00:00Z"), Some(date(2027, 5, 4)));
        assert_eq!(of("solar:2027", "2028-01-03T10:00:00Z"), Some(date(2027, 12, 31)));
        // However late a person has sent a dead letter.
        assert_eq!(of("solar:2027", "2028-05-04T10:00:00Z"), Some(date(2027, 12, 31)));
        // The lunar year 2026 ends on 2027-02-05.
        assert_eq!(of("lunar:2026", "2027-02-07T10:00:00Z"), Some(date(2027, 2, 5)));
        // A clock that is a little behind.
        assert_eq!(of("solar:2027", "2026-12-31T23:59:59Z"), Some(date(2027, 1, 1)));
        assert_eq!(of("solar:2029", "2027-05-04T10:00:00Z"), None);
        assert_eq!(given_at("solar:2027", "2027-05-04T18:00:00Z", "Asia/Shanghai"), Some(date(2027, 5, 5)));
    }

    fn pages_of(pages: &[(Option<u64>, Option<u64>)]) -> Result<(), String> {
        let file = PathBuf::new();
        let page = |(after, next): &(Option<u64>, Option<u64>)| {
            (&file, Page { gifts: Vec::new(), after: *after, next: *next })
        };
        complete(&pages.iter().map(page).collect::<Vec<_>>())
    }

    #[test]
    fn a_statement_that_lacks_a_page_is_refused() {
        assert!(pages_of(&[(Some(0), None)]).is_ok());
        assert!(pages_of(&[(None, Some(10)), (None, Some(20)), (None, None)]).is_ok());
        assert!(pages_of(&[(Some(10), None), (Some(0), Some(10))]).is_ok(), "in any order");
        assert!(pages_of(&[(None, Some(10))]).is_err(), "the last page is missing");
        assert!(pages_of(&[(None, None), (None, None)]).is_err(), "two last pages");
        assert!(
            pages_of(&[(Some(0), Some(10)), (Some(0), Some(10)), (Some(20), None)]).is_err(),
            "one twice"
        );
        assert!(pages_of(&[(Some(0), Some(10)), (Some(20), None)]).is_err(), "the middle is missing");
        assert!(pages_of(&[(Some(10), None)]).is_err(), "the first page is missing");
        assert!(serde_json::from_str::<Page>(r#"{"gifts": []}"#).is_err(), "a page that says no next one");
        assert!(serde_json::from_str::<Page>(r#"{"gifts": [], "next": null}"#).is_ok());
    }
}
