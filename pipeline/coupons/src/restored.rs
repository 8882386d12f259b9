//! A ledger that a person restored from an older copy: its tokens show it, and the coupon system's statement mends it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;

use crate::issuing::Chain;
use crate::ports::{Ledger, Register, Uniques};
use crate::records::{Candidate, CouponKey, LedgerTokens, MEMBERS_MAX, RunKey, Unique, UsersLedger, part};
use crate::reserving::settle;

/// A coupon that the coupon system reports as given.
#[derive(Debug, Clone)]
pub struct GivenCoupon {
    /// The day and the member that the key of the call names.
    pub candidate: Candidate,
    pub coupon: std::sync::Arc<str>,
}

/// Compares the ledger's tokens with the register; there is no verdict when the register moved meanwhile.
pub async fn compare<L: Ledger, R: Register>(
    ledger: &L,
    register: &R,
) -> Result<(Option<Chain>, LedgerTokens, Unique), Fault> {
    let before = register.read().await?;
    let tokens = ledger.tokens().await?;
    let is_still = register.read().await? == before;
    Ok((is_still.then(|| Chain::of(tokens, before)), tokens, before))
}

/// Returns the fault that stops all grants.
pub fn fault() -> Fault {
    let found = "it lacks calls that the register has: it was restored from an older copy";
    Fault::new(Code::CouponLedgerRestored, "coupon ledger", found)
        .needs("the coupons that the coupon system gave after the copy was made")
        .remedy(
            "`anabranch --config FILE dispatch take-in` with the coupon system's statement; a person decides about \
             coupons that the statement does not have any more",
        )
}

/// The coupons of a statement in one part of a run: one table of the ledger.
struct PartCoupons<'s> {
    run: &'s RunKey,
    coupons: Vec<(CouponKey, &'s GivenCoupon)>,
}

/// Sorts the coupons of a statement by run and part, in the statement's order within each.
fn parts(statement: &[GivenCoupon]) -> Vec<PartCoupons<'_>> {
    let mut parts: BTreeMap<(&RunKey, u64), Vec<(CouponKey, &GivenCoupon)>> = BTreeMap::new();
    for given in statement {
        let Some(key) = given.candidate.key() else { continue };
        parts.entry((&given.candidate.run, part(key.user))).or_default().push((key, given));
    }
    parts.into_iter().map(|((run, _), coupons)| PartCoupons { run, coupons }).collect()
}

/// Settles coupons that a statement names.
fn settle_all(ledger: &mut UsersLedger, coupons: &[(CouponKey, &GivenCoupon)]) {
    for (key, given) in coupons {
        if let Some(user) = ledger.users.get_mut(&key.user) {
            // The statement does not say by which rules a coupon was given.
            settle(user, &given.candidate, key, &given.coupon, None);
        }
    }
}

/// The settlement of a statement by some tasks, each of which settles one part after the other.
struct Settlement<'s, L> {
    ledger: &'s L,
    parts: Vec<PartCoupons<'s>>,
    /// Index of the part that no task has begun.
    next: AtomicUsize,
}

impl<L: Ledger> Settlement<'_, L> {
    /// Settles parts until none is left, a hundred coupons a transaction.
    async fn run(&self) -> Result<(), Fault> {
        while let Some(part) = self.parts.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            for coupons in part.coupons.chunks(MEMBERS_MAX) {
                let users: Vec<u64> = coupons.iter().map(|(key, _)| key.user).collect();
                let write = |l: &mut UsersLedger| settle_all(l, coupons);
                self.ledger.with_users(part.run, &users, write).await?;
                failpoints::reach("coupons-after-first-settled").await;
            }
        }
        Ok(())
    }
}

/// Settles every coupon of a complete statement, eight parts at once, and then begins a new chain of tokens.
///
/// The statement reaches back to before the copy was made. The caller has waited until connections of that time are
/// closed, so no call of theirs arrives any more. Running it again after a crash does the same.
pub async fn take_in<L: Ledger, R: Register, U: Uniques>(
    ledger: &L,
    register: &R,
    process: &U,
    statement: &[GivenCoupon],
) -> Result<(), Fault> {
    failpoints::reach("coupons-before-take-in").await;
    let all = Settlement { ledger, parts: parts(statement), next: AtomicUsize::new(0) };
    tokio::try_join!(all.run(), all.run(), all.run(), all.run(), all.run(), all.run(), all.run(), all.run())?;
    let token = process.fresh();
    let known = register.read().await?;
    failpoints::reach("coupons-before-register").await;
    if !register.swap(known, token).await? {
        return Err(fault());
    }
    failpoints::reach("coupons-after-register").await;
    // The ledger gets the token last: until then its tokens differ from the register, and nothing is granted.
    ledger.begin_tokens(token).await?;
    failpoints::reach("coupons-after-take-in").await;
    Ok(())
}
