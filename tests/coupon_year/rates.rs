//! The rate of a programme among the granters of several processes, on virtual time.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anabranch_connectors::memory::{MemoryRegisters, Refused, Weather};
use anabranch_coupons::programme::Programme;
use anabranch_coupons::rates::{GONE_AFTER, GranterCount, REPORT_EVERY, Rates};
use anabranch_coupons::records::{Member, Message, PARTS, RunKey};
use anabranch_pipeline::error::Code;
use anabranch_schemas::celebration::Calendar;
use jiff::civil::date;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Users a second, and users of a message.
const RATE: u64 = 100;
const USERS: u64 = 20;
/// Time over which grants are counted.
const COUNTED: Duration = Duration::from_secs(60);

fn programme() -> Programme {
    with_rate("birthday", RATE)
}

fn with_rate(name: &str, rate: u64) -> Programme {
    let text = format!(
        "name = '{name}'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'feb28'\nrate_per_second = {rate}\n"
    );
    Programme::parse_all(&[text.parse().expect("TOML")]).expect("a programme").remove(0)
}

fn message() -> Message {
    let members = (0..USERS).map(|number| Member { user: number * PARTS, calendar: Calendar::Solar });
    let run = RunKey { programme: "birthday".into(), day: date(2027, 5, 4) };
    Message { run, members: members.collect(), wave: 1 }
}

/// Starts a granter that always has messages; it counts its users.
fn start(name: &str, registers: &MemoryRegisters) -> (JoinHandle<()>, Arc<AtomicU64>) {
    let (mut count, registers) = (GranterCount::new(name), registers.clone());
    let granted = Arc::new(AtomicU64::new(0));
    let users = Arc::clone(&granted);
    let task = tokio::spawn(async move {
        let rates = Rates::new(&[programme()], count.report(&registers).await.expect("the log answers"));
        tokio::join!(reports(&mut count, &registers, &rates), grants(&rates, &users));
    });
    (task, granted)
}

async fn reports(count: &mut GranterCount, registers: &MemoryRegisters, rates: &Rates) {
    loop {
        sleep(REPORT_EVERY).await;
        if let Ok(granters) = count.report(registers).await {
            rates.share(granters);
        }
    }
}

async fn grants(rates: &Rates, users: &AtomicU64) {
    let message = message();
    loop {
        rates.keep(&message).await;
        users.fetch_add(USERS, Ordering::Relaxed);
    }
}

/// Counts the users of each granter for a while.
async fn counted(granters: &[(JoinHandle<()>, Arc<AtomicU64>)]) -> Vec<u64> {
    let counts = || granters.iter().map(|(_, users)| users.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = counts();
    sleep(COUNTED).await;
    counts().iter().zip(before).map(|(after, before)| after - before).collect()
}

fn expect_rate(counts: &[u64], context: &str) {
    let (all, expected): (u64, u64) = (counts.iter().sum(), RATE * COUNTED.as_secs());
    assert!(all.abs_diff(expected) <= expected / 20, "{context}: {all} of {expected}, {counts:?}");
}

#[tokio::test]
async fn a_granter_that_is_tried_again_takes_no_part_in_between_and_remembers_the_others() {
    let registers = MemoryRegisters::new(Weather::calm());
    GranterCount::new("killed").report(&registers).await.unwrap();
    let mut tried = GranterCount::new("tried");
    for _ in 0..GONE_AFTER {
        tried.report(&registers).await.unwrap();
        tried.leave(&registers).await.unwrap();
    }
    assert_eq!(tried.report(&registers).await.unwrap().get(), 1, "the killed one is gone");
    tried.leave(&registers).await.unwrap();
    let other = GranterCount::new("other").report(&registers).await.unwrap();
    assert_eq!(other.get(), 1, "one that cannot grant takes no part");
}

#[tokio::test(start_paused = true)]
async fn users_without_a_call_leave_the_rate_to_others() {
    let (rates, message) = (Rates::new(&[programme()], NonZeroUsize::MIN), message());
    let began = Instant::now();
    // A hundred users are called for, each beside 19 whose source is down.
    for _ in 0..100 {
        let kept = rates.keep(&message).await;
        rates.give_back(&message.run.programme, kept, 1);
    }
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(rates.holds_up_others(&message.run.programme).is_none(), "there is no other programme");
}

#[tokio::test(start_paused = true)]
async fn a_message_gives_back_what_it_took_though_granters_came_or_left_since() {
    for (before, after) in [(1, 10), (10, 1)] {
        let [before, after] = [before, after].map(|granters| NonZeroUsize::new(granters).unwrap());
        let (rates, message, began) = (Rates::new(&[programme()], before), message(), Instant::now());
        for _ in 0..20 {
            rates.share(before);
            let kept = rates.keep(&message).await;
            rates.share(after);
            rates.give_back(&message.run.programme, kept, 0);
        }
        assert!(began.elapsed() <= Duration::from_secs(1), "nobody was called: {:?}", began.elapsed());
        rates.share(NonZeroUsize::MIN);
        let began = Instant::now();
        for _ in 0..20 {
            rates.keep(&message).await;
        }
        assert!(began.elapsed() >= Duration::from_secs(3), "20 users take 0.2 s: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_programme_holds_up_no_fast_one() {
    let rates = Rates::new(&[with_rate("birthday", 10), with_rate("cinema", 10_000)], NonZeroUsize::MIN);
    let (slow, began) = (message(), Instant::now());
    let run = RunKey { programme: "cinema".into(), ..slow.run.clone() };
    let fast = Message { run, ..slow.clone() };
    for message in [&slow, &fast, &fast] {
        rates.keep(message).await;
    }
    assert!(began.elapsed() < Duration::from_secs(1));
    let waits = [&slow, &fast].map(|message| rates.holds_up_others(&message.run.programme));
    assert!(waits[0] > Some(Duration::from_secs(1)), "it goes back to the queue: {waits:?}");
    assert!(waits[1] < Some(Duration::from_millis(200)), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn granters_of_several_processes_keep_one_rate_together_and_share_it_evenly() {
    let weather = Weather::calm();
    let registers = MemoryRegisters::new(weather.clone());
    let mut granters: Vec<_> = ["one", "two", "three"].map(|name| start(name, &registers)).into();
    sleep(2 * REPORT_EVERY).await;
    let counts = counted(&granters).await;
    expect_rate(&counts, "of three granters");
    assert!(counts.iter().all(|users| users.abs_diff(RATE * 20) <= RATE), "{counts:?}");

    // While the log does not answer, the last count holds.
    weather.refuse(Some((Refused::Log, Code::LogUnreachable)));
    sleep(2 * GONE_AFTER * REPORT_EVERY).await;
    expect_rate(&counted(&granters).await, "without the log");
    weather.refuse(None);
    expect_rate(&counted(&granters).await, "with the log again");

    // A granter that was killed leaves its part to the others.
    let (killed, _) = granters.remove(0);
    killed.abort();
    sleep((GONE_AFTER + 2) * REPORT_EVERY).await;
    expect_rate(&counted(&granters).await, "of the two that are left");

    // One that ends in order does so at once.
    let (ended, _) = granters.remove(0);
    ended.abort();
    GranterCount::new("two").leave(&registers).await.unwrap();
    sleep(2 * REPORT_EVERY).await;
    expect_rate(&counted(&granters).await, "of the last one");
}
