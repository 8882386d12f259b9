//! Mends a ledger that was restored from an older copy: asks the coupon system for every coupon that it gave since.
//!
//! A dispatcher does this once the ledger has waited for `coupon_system.restored_wait_seconds`. By then each call that
//! began before the restore has ended. A register in the log's bucket has the time that the ledger has waited, so a
//! dispatcher that starts again goes on with the wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anabranch_coupons::ports::{Ledger as _, Register as _};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::Unique;
use anabranch_coupons::restored;
use anabranch_pipeline::error::{Code, Fault};
use anabranch_pipeline::ports::{Register, Registers};
use jiff::Timestamp;
use tokio::time::Instant;

use super::{LedgerRegister, Process};
use crate::operations::{Actor, CommandText, recorded};
use crate::wiring::Wiring;

/// The key of the register that has the wait after a restore.
const KEY: &str = "coupon-ledger-restored";

/// Asks the coupon system for its statement, takes it in and records that; returns the number of its coupons.
pub async fn mend(
    wiring: &Wiring,
    programmes: &[Programme],
    actor: &Actor,
    command: &str,
) -> Result<usize, Fault> {
    let (ledger, system) = (wiring.coupon_ledger().await?, wiring.coupon_caller()?);
    let register = LedgerRegister(wiring.clone());
    let asked = (&system, programmes);
    let work = async { restored::ask_and_take_in(&ledger, &register, &Process, asked).await };
    let after = |coupons: &usize| format!("{coupons} coupons were settled");
    Ok(recorded(wiring, actor, (CommandText::of(command).text(), None), work, after).await?.done)
}

/// Returns the time that a restored ledger has still to wait; `None` once the wait is over.
pub async fn left_to_wait(wiring: &Wiring) -> Result<Option<Duration>, Fault> {
    let known = wiring.log().await?.read(KEY).await?;
    let token = LedgerRegister(wiring.clone()).read().await?;
    let needed = wiring.coupon_system()?.restored_wait;
    Ok(Wait::of(&known, token).map_or(Some(needed), |wait| wait.left(needed)))
}

/// The wait of a ledger after a restore, as the register has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wait {
    /// The token of the last issue. A later issue begins another wait.
    token: Unique,
    /// The time that dispatchers saw pass since that issue. No time counts twice, and no clock that a person sets
    /// counts.
    waited: Duration,
}

impl Wait {
    /// Parses the value of the register; `None` = no wait has begun.
    fn parse(value: &str) -> Option<Self> {
        let (token, waited) = value.split_once(' ')?;
        let token = Unique(u128::from_str_radix(token, 16).ok()?);
        Some(Self { token, waited: Duration::from_millis(waited.parse().ok()?) })
    }

    /// Returns the wait since the issue of this token; `None` = none has begun.
    fn of(known: &Register, token: Unique) -> Option<Self> {
        Self::parse(&known.value).filter(|wait| wait.token == token)
    }

    fn text(&self) -> String {
        format!("{:032x} {}", self.token.0, self.waited.as_millis())
    }

    /// Returns whether the register has this wait, so that nothing is to be written.
    fn is_in(&self, register: &Register) -> bool {
        register.value == self.text()
    }

    fn is_over(&self, needed: Duration) -> bool {
        self.waited >= needed
    }

    /// Returns the time that is left; `None` once the wait is over.
    fn left(&self, needed: Duration) -> Option<Duration> {
        (!self.is_over(needed)).then(|| needed.saturating_sub(self.waited))
    }
}

/// The last pass of a task that saw the ledger as restored, and its last question that had no use; clones share them.
#[derive(Debug, Clone, Default)]
pub struct SeenRestored {
    seen: Arc<Mutex<Option<Seen>>>,
    useless: Arc<Mutex<Option<Useless>>>,
}

/// A question for a statement: the token of the register, and the time of the last issue that the ledger knows.
type Question = (Unique, Option<Timestamp>);

/// A question that this process does not ask again, and the reason why a person decides. Another attempt would write
/// another marker, and so disturb the person's `take-in`.
#[derive(Debug)]
struct Useless {
    question: Question,
    why: String,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Revision of the register, whose wait reaches to this pass or to an earlier time. A pass that adds no time leaves
    /// it alone: otherwise the passes of two processes in turn would hide all time from each other.
    revision: u64,
    at: Instant,
}

impl SeenRestored {
    /// Returns the wait at a pass. The time since the last pass counts unless another process wrote the register.
    /// `now` lies between the readings of the register and of the token.
    fn note(&self, known: &Register, token: Unique, now: Instant) -> Wait {
        let last = self.lock().replace(Seen { revision: known.revision, at: now });
        let Some(wait) = Wait::of(known, token) else {
            return Wait { token, waited: Duration::ZERO };
        };
        let last = last.filter(|last| last.revision == known.revision);
        let passed = last.map_or(Duration::ZERO, |last| now.duration_since(last.at));
        Wait { waited: wait.waited + passed, ..wait }
    }

    /// Records that the register has the wait at a pass.
    fn written(&self, revision: u64, at: Instant) {
        *self.lock() = Some(Seen { revision, at });
    }

    /// Records that a pass did not see the ledger as restored.
    fn forget(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the fault of an earlier question that was the same and had no use.
    fn useless(&self, question: Question) -> Option<Fault> {
        let useless = self.useless.lock().unwrap_or_else(PoisonError::into_inner);
        let same = useless.as_ref().filter(|useless| useless.question == question);
        same.map(|useless| restored::fault().caused_by(useless.why.clone()))
    }

    /// Records the end of a question.
    fn ended(&self, question: Question, fault: &Fault) {
        if restored::needs_person(fault) {
            let useless = Useless { question, why: fault.causes().join(": ") };
            *self.useless.lock().unwrap_or_else(PoisonError::into_inner) = Some(useless);
        }
    }

    /// Adds the time since the last pass to the register; returns whether the ledger has waited long enough.
    async fn has_waited(&self, wiring: &Wiring) -> Result<bool, Fault> {
        let log = wiring.log().await?;
        let known = log.read(KEY).await?;
        let now = Instant::now();
        let token = LedgerRegister(wiring.clone()).read().await?;
        let wait = self.note(&known, token, now);
        if !wait.is_in(&known) {
            match log.compare_and_set(KEY, &known, wait.text()).await {
                Ok(register) => self.written(register.revision, now),
                // Another dispatcher wrote first, and the time that it saw counts.
                Err(fault) if fault.code() == Code::LeaseLost => return Ok(false),
                Err(fault) => return Err(fault),
            }
        }
        Ok(wait.is_over(wiring.coupon_system()?.restored_wait))
    }

    /// Mends the ledger if a pass of the first programme ended because it was restored, and if no earlier call can be
    /// under way. Returns whether it did; a fault has the reason why a person decides.
    pub(super) async fn mend(
        &self,
        wiring: &Wiring,
        programme: &Programme,
        fault: Option<&Fault>,
    ) -> Result<bool, Fault> {
        let is_restored = fault.is_some_and(|fault| fault.code() == Code::CouponLedgerRestored);
        let programmes = super::programmes(wiring.config())?;
        // The ledger is one for all programmes, so one of their tasks mends it.
        let is_first = programmes.first().is_some_and(|first| first.name == programme.name);
        if !is_restored || !is_first {
            self.forget();
            return Ok(false);
        }
        if !self.has_waited(wiring).await? {
            return Ok(false);
        }
        let token = LedgerRegister(wiring.clone()).read().await?;
        let question = (token, wiring.coupon_ledger().await?.issued_at().await?);
        if let Some(fault) = self.useless(question) {
            return Err(fault);
        }
        let mended = mend(wiring, &programmes, &Actor::of_task("dispatcher"), "dispatch take-in").await;
        match mended.inspect_err(|fault| self.ended(question, fault)) {
            Ok(_) => Ok(true),
            // Another process has mended it meanwhile, so the next pass finds it whole.
            Err(fault) if fault.code() == Code::DispatchRefused => Ok(false),
            Err(fault) if fault.code() == Code::CouponLedgerRestored => Err(fault),
            Err(fault) => Err(restored::fault().caused_by(fault)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register, and the passes of processes that see the ledger as restored.
    struct Passes {
        began: Instant,
        register: Register,
    }

    impl Passes {
        fn new() -> Self {
            Self { began: Instant::now(), register: Register { value: String::new(), revision: 0 } }
        }

        /// Returns the wait in minutes.
        fn pass(&mut self, process: &SeenRestored, token: u128, at_minute: u64) -> u64 {
            let now = self.began + minutes(at_minute);
            let wait = process.note(&self.register, Unique(token), now);
            if !wait.is_in(&self.register) {
                let revision = self.register.revision + 1;
                self.register = Register { value: wait.text(), revision };
                process.written(revision, now);
            }
            wait.waited.as_secs() / 60
        }
    }

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    #[test]
    fn a_ledger_waits_while_a_dispatcher_sees_it_and_goes_on_waiting_after_a_restart() {
        let (mut passes, process) = (Passes::new(), SeenRestored::default());
        assert_eq!([0, 1, 29].map(|at| passes.pass(&process, 1, at)), [0, 1, 29]);
        let next = SeenRestored::default();
        assert_eq!([40, 41].map(|at| passes.pass(&next, 1, at)), [29, 30], "nobody saw the time in between");
        next.forget();
        assert_eq!(passes.pass(&next, 1, 50), 30, "a pass found the ledger whole");
    }

    #[test]
    fn time_that_two_processes_see_counts_once() {
        let (mut passes, one, other) = (Passes::new(), SeenRestored::default(), SeenRestored::default());
        assert_eq!([0, 1].map(|at| passes.pass(&one, 1, at)), [0, 1]);
        assert_eq!([2, 3].map(|at| passes.pass(&other, 1, at)), [1, 2]);
        assert_eq!([4, 5].map(|at| passes.pass(&one, 1, at)), [2, 3]);
        // Each of them makes a pass in turn.
        let in_turn = [(6, &other), (7, &one), (8, &other), (9, &one), (10, &other), (11, &one)];
        assert_eq!(in_turn.map(|(at, process)| passes.pass(process, 1, at)), [3, 5, 5, 7, 7, 9]);
        assert_eq!([12, 13].map(|at| passes.pass(&other, 1, at)), [9, 10], "the first process has ended");
    }

    #[test]
    fn a_question_that_a_person_must_answer_is_not_asked_again_until_the_ledger_is_another() {
        let (process, question) = (SeenRestored::default(), (Unique(1), Some(Timestamp::UNIX_EPOCH)));
        process.ended(question, &Fault::new(Code::CouponSystemUnreachable, "coupon system", "no answer"));
        assert!(process.useless(question).is_none(), "it may be asked again");
        process.ended(question, &restored::fault().caused_by("the coupon system has no statement"));
        let fault = process.clone().useless(question).unwrap();
        assert_eq!(fault.code(), Code::CouponLedgerRestored);
        assert_eq!(fault.causes(), ["the coupon system has no statement"]);
        assert!(process.useless((Unique(2), question.1)).is_none(), "another issue");
        assert!(process.useless((Unique(1), None)).is_none(), "another copy");
    }

    #[test]
    fn an_issue_begins_another_wait() {
        let (mut passes, process) = (Passes::new(), SeenRestored::default());
        assert_eq!([0, 29].map(|at| passes.pass(&process, 1, at)), [0, 29]);
        assert_eq!([30, 31].map(|at| passes.pass(&process, 2, at)), [0, 1]);
    }

    #[test]
    fn a_wait_is_read_as_it_is_written_and_over_after_the_needed_time() {
        let wait = Wait { token: Unique(u128::MAX - 5), waited: minutes(30) };
        assert_eq!(Wait::parse(&wait.text()), Some(wait));
        assert_eq!(Wait::parse("").or(Wait::parse("no wait")), None);
        assert!(wait.is_over(minutes(30)) && !wait.is_over(minutes(31)));
        assert_eq!([30, 31].map(|needed| wait.left(minutes(needed))), [None, Some(minutes(1))]);
        let known = Register { value: wait.text(), revision: 1 };
        assert_eq!((Wait::of(&known, wait.token), Wait::of(&known, Unique(1))), (Some(wait), None));
    }
}
