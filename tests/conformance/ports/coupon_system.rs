//! The coupon system: one answer for each key, one coupon for a key that it knows, and outcomes that stay open.
//!
//! The server is the demo's witness, asked for many coupons in one request and for one at a time.

use std::sync::Arc;
use std::time::Duration;

use anabranch_connectors::coupon_system::HttpCouponSystem;
use anabranch_connectors::memory::{CallFault, MemoryCouponSystem};
use anabranch_coupons::ports::{Answer, CouponSystem};
use anabranch_coupons::records::{CouponKey, MEMBERS_MAX};
use anabranch_demo::Faults;
use jiff::{SignedDuration, Timestamp};

use crate::coupon_system::{WitnessGround, coupon, coupons, keys};
use crate::nats::until;

const KEY_MEMORY: SignedDuration = SignedDuration::from_hours(24);
/// Time after which the witness closes an idle connection.
const IDLE: Duration = Duration::from_secs(2);

/// A coupon system whose faults and whose time a test decides.
pub trait Ground {
    type System: CouponSystem;

    async fn start() -> Self;
    fn system(&self) -> &Self::System;
    /// Lets each call meet this fault from now on; `None` = no fault any more.
    async fn set_fault(&self, fault: Option<CallFault>);
    /// Leaves this number of coupons, and rejects this key from now on.
    async fn restrict(&self, pool: u64, rejected: CouponKey);
    /// Number of coupons that were given.
    async fn given(&self) -> usize;
    /// Lets each key grow older than the system's memory.
    async fn outlive_keys(&self);
    /// Lets each connection grow so old that the system closes it.
    async fn outlive_connections(&self);
}

pub struct Twin(MemoryCouponSystem);

impl Ground for Twin {
    type System = MemoryCouponSystem;

    async fn start() -> Self {
        Self(MemoryCouponSystem::new(KEY_MEMORY))
    }

    fn system(&self) -> &MemoryCouponSystem {
        &self.0
    }

    async fn set_fault(&self, fault: Option<CallFault>) {
        self.0.set_fault(fault);
    }

    async fn restrict(&self, pool: u64, rejected: CouponKey) {
        self.0.restrict(pool, [rejected]);
    }

    async fn given(&self) -> usize {
        self.0.given().len()
    }

    async fn outlive_keys(&self) {
        self.0.pass(KEY_MEMORY);
    }

    async fn outlive_connections(&self) {
        self.0.pass(SignedDuration::from_mins(11));
    }
}

pub struct Server<const IS_BATCHED: bool>(WitnessGround);

type Batched = Server<true>;
type Single = Server<false>;

impl<const IS_BATCHED: bool> Ground for Server<IS_BATCHED> {
    type System = HttpCouponSystem;

    async fn start() -> Self {
        Self(WitnessGround::start_with(IS_BATCHED, |options| options.idle = IDLE).await)
    }

    fn system(&self) -> &HttpCouponSystem {
        &self.0.system
    }

    async fn set_fault(&self, fault: Option<CallFault>) {
        let faults = match fault {
            None => Faults::default(),
            Some(CallFault::LostBefore) => Faults { lost_before: 1.0, ..Faults::default() },
            Some(CallFault::LostAfter) => Faults { lost_after: 1.0, ..Faults::default() },
            Some(CallFault::ErrorBefore) => Faults { error_before: 1.0, ..Faults::default() },
            Some(CallFault::ErrorAfter) => Faults { error_after: 1.0, ..Faults::default() },
            Some(CallFault::Busy) => Faults { busy: 1.0, retry_after_seconds: 1, ..Faults::default() },
        };
        self.0.switch(faults).await;
    }

    async fn restrict(&self, pool: u64, rejected: CouponKey) {
        let text = format!("{}/{}/{}", rejected.programme, rejected.occurrence, rejected.user);
        self.0.switch(Faults { pool: Some(pool), rejected_keys: vec![text], ..Faults::default() }).await;
    }

    async fn given(&self) -> usize {
        self.0.gifts().await
    }

    async fn outlive_keys(&self) {
        self.0.control.forget_keys().await.unwrap();
    }

    async fn outlive_connections(&self) {
        tokio::time::sleep(IDLE * 2).await;
    }
}

on_twin_and_server!(Twin, Batched:
    each_key_has_one_answer_in_order_and_gives_one_coupon,
    an_outcome_without_an_answer_is_open_whether_the_work_was_done_or_not,
    a_forgotten_key_gives_another_coupon,
    an_expired_connection_sends_nothing,
    a_busy_system_does_nothing_and_works_again_after_its_pause,
    the_statement_has_every_coupon_in_order_also_of_forgotten_keys,
);

on_server!(single, Single:
    each_key_has_one_answer_in_order_and_gives_one_coupon,
    an_outcome_without_an_answer_is_open_whether_the_work_was_done_or_not,
    a_forgotten_key_gives_another_coupon,
    an_expired_connection_sends_nothing,
    a_busy_system_does_nothing_and_works_again_after_its_pause,
);

/// Makes a call over a connection of its own.
async fn call(ground: &impl Ground, coupons: &[(CouponKey, Arc<str>)]) -> Vec<Answer> {
    let connection = ground.system().connect().await.unwrap();
    ground.system().call(&connection, coupons).await.unwrap()
}

async fn knows(ground: &impl Ground, users: impl IntoIterator<Item = u64>) -> Vec<bool> {
    ground.system().knows(&keys(users)).await.unwrap()
}

/// A call for another coupon than the one that [`coupon`] names.
fn of_another_coupon(user: u64) -> (CouponKey, Arc<str>) {
    (coupon(user).0, Arc::from("another"))
}

async fn each_key_has_one_answer_in_order_and_gives_one_coupon(ground: impl Ground) {
    assert_eq!(knows(&ground, [1, 2]).await, [false; 2]);
    // As many keys as a call has at most.
    let most = MEMBERS_MAX as u64;
    assert_eq!(call(&ground, &coupons(0..most)).await, vec![Answer::Given; MEMBERS_MAX]);
    assert_eq!(call(&ground, &coupons([7, 7, 500])).await, [Answer::Given; 3]);
    assert_eq!(ground.given().await, MEMBERS_MAX + 1, "a known key gives no second coupon");
    assert_eq!(knows(&ground, [most - 1, most, 500]).await, [true, false, true]);

    let answers = call(&ground, &[coupon(600), of_another_coupon(7), coupon(8)]).await;
    assert_eq!(answers, [Answer::Given, Answer::Mismatch, Answer::Given]);
    assert_eq!(ground.given().await, MEMBERS_MAX + 2);

    // A known key needs no coupon of the pool.
    ground.restrict(2, coupon(601).0).await;
    let expected = [Answer::Given, Answer::Rejected, Answer::Given, Answer::PoolEmpty, Answer::Given];
    assert_eq!(call(&ground, &coupons([700, 601, 702, 703, 7])).await, expected);
    assert_eq!(knows(&ground, [700, 601, 702, 703, 7]).await, [true, false, true, false, true]);
    assert_eq!(ground.given().await, MEMBERS_MAX + 4);
}

async fn an_outcome_without_an_answer_is_open_whether_the_work_was_done_or_not(ground: impl Ground) {
    let faults = [
        (CallFault::ErrorBefore, Answer::Error, false),
        (CallFault::ErrorAfter, Answer::Error, true),
        (CallFault::LostBefore, Answer::Unknown, false),
        (CallFault::LostAfter, Answer::Unknown, true),
    ];
    let mut given = 0;
    for (number, (fault, expected, is_given)) in (1..).zip(faults) {
        let (alone, pair) = (number * 10, [number * 10 + 1, number * 10 + 2]);
        ground.set_fault(Some(fault)).await;
        assert_eq!(call(&ground, &coupons([alone])).await, [expected], "{fault:?}");
        let answers = call(&ground, &coupons(pair)).await;
        ground.set_fault(None).await;

        assert_eq!(knows(&ground, [alone]).await, [is_given], "{fault:?}");
        let known = knows(&ground, pair).await;
        assert_eq!((answers.len(), known.len()), (2, 2), "{fault:?}");
        for (answer, is_known) in answers.into_iter().zip(known) {
            match answer {
                // A request may carry one coupon alone, so an error may name one user of the two.
                Answer::Unknown | Answer::Error => assert_eq!(is_known, is_given, "{fault:?}"),
                // A connection that broke is not used for the second request.
                Answer::ConnectionExpired => assert!(!is_known, "{fault:?}"),
                closed => panic!("{fault:?} has the outcome {closed:?}"),
            }
            given += usize::from(is_known);
        }
        // The same key again settles the outcome, and gives no second coupon.
        assert_eq!(call(&ground, &coupons([alone])).await, [Answer::Given], "{fault:?}");
        given += 1;
        assert_eq!(ground.given().await, given, "{fault:?}");
    }
}

async fn a_forgotten_key_gives_another_coupon(ground: impl Ground) {
    assert_eq!(call(&ground, &coupons([1])).await, [Answer::Given]);
    assert_eq!(call(&ground, &[of_another_coupon(1)]).await, [Answer::Mismatch]);
    ground.outlive_keys().await;
    assert_eq!(knows(&ground, [1]).await, [false]);
    assert_eq!(call(&ground, &[of_another_coupon(1)]).await, [Answer::Given]);
    assert_eq!(call(&ground, &coupons([1])).await, [Answer::Mismatch], "the key has the later coupon");
    assert_eq!((knows(&ground, [1]).await, ground.given().await), (vec![true], 2));
}

async fn the_statement_has_every_coupon_in_order_also_of_forgotten_keys(ground: impl Ground) {
    let expected: Vec<_> = (0..5).flat_map(|call| coupons(call * 90..call * 90 + 90)).collect();
    for call in expected.chunks(90) {
        self::call(&ground, call).await;
    }
    ground.outlive_keys().await;
    let (mut found, mut position, mut pages) = (Vec::new(), Some(0), 0);
    while let Some(first) = position {
        let page = ground.system().statement(Timestamp::UNIX_EPOCH, first).await.unwrap().unwrap();
        found.extend(page.gifts.into_iter().map(|gift| (gift.key, gift.coupon)));
        (position, pages) = (page.next, pages + 1);
    }
    assert!(pages > 1, "more coupons than a page holds");
    assert_eq!(found, expected);
    let future: Timestamp = "2999-01-01T00:00:00Z".parse().unwrap();
    let later = ground.system().statement(future, 0).await.unwrap().unwrap();
    assert!(later.gifts.is_empty(), "nothing was given since then");
}

async fn an_expired_connection_sends_nothing(ground: impl Ground) {
    let system = ground.system();
    let connection = system.connect().await.unwrap();
    assert_eq!(system.call(&connection, &coupons([1])).await.unwrap(), [Answer::Given]);
    ground.outlive_connections().await;
    for _ in 0..2 {
        let answers = system.call(&connection, &coupons([2, 3])).await.unwrap();
        assert_eq!(answers, [Answer::ConnectionExpired; 2]);
    }
    drop(connection);
    assert_eq!((knows(&ground, [2, 3]).await, ground.given().await), (vec![false; 2], 1));
    assert_eq!(call(&ground, &coupons([2, 3])).await, [Answer::Given; 2]);
}

async fn a_busy_system_does_nothing_and_works_again_after_its_pause(ground: impl Ground) {
    ground.set_fault(Some(CallFault::Busy)).await;
    assert_eq!(call(&ground, &coupons([1, 2])).await, [Answer::Busy; 2]);
    ground.set_fault(None).await;
    until("the pause is over", async || ground.system().connect().await.is_ok()).await;
    assert_eq!((knows(&ground, [1, 2]).await, ground.given().await), (vec![false; 2], 0));
    assert_eq!(call(&ground, &coupons([1, 2])).await, [Answer::Given; 2]);
}
