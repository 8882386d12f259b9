//! A ledger that a person restored from an older copy: its tokens show it, and the coupon system's statement mends it.

use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::failpoints;

use crate::issuing::Chain;
use crate::ports::{Ledger, Register, Uniques};
use crate::records::{Candidate, LedgerTokens, Unique, UsersLedger};
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

/// Settles every coupon of a complete statement, and then begins a new chain of tokens.
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
    for given in statement {
        let candidate = &given.candidate;
        let (Some(key), user) = (candidate.key(), candidate.member.user) else { continue };
        // The statement does not say by which rules a coupon was given.
        let write = |l: &mut UsersLedger| {
            l.users.get_mut(&user).map(|user| settle(user, candidate, &key, &given.coupon, None))
        };
        ledger.with_users(&candidate.run, &[user], write).await?;
        failpoints::reach("coupons-after-first-settled").await;
    }
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
