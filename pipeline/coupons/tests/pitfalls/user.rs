//! One user's ledger, and the steps of granters on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use anabranch_coupons::days::begin;
use anabranch_coupons::issuing::issue_user;
use anabranch_coupons::ports::SourceRow;
use anabranch_coupons::programme::Programme;
use anabranch_coupons::records::{Candidate, DayRun, Member, ProgrammeLedger, RunKey, Unique, UserLedger};
use anabranch_coupons::reserving::{MessageEnd, TakenRow, reserve, settle};
use anabranch_schemas::birthday::MonthDay;
use anabranch_schemas::celebration::Calendar;
use anabranch_schemas::lunar::LunarMonthDay;
use anabranch_schemas::shard::ShardId;
use jiff::Timestamp;
use jiff::civil::Date;

pub fn programme(more: &str) -> Programme {
    let text = format!("name = 'birthday'\ncoupon = 'cake'\ntime_zone = 'UTC'\nleap_day = 'feb28'\n{more}");
    Programme::parse_all(&[text.parse().unwrap()]).unwrap().remove(0)
}

pub fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

pub fn begun(now: &str, own_clock: &str, next: Option<Date>, rules: &Programme) -> Vec<(Date, DayRun)> {
    let mut ledger = ProgrammeLedger {
        now: at(now),
        next,
        leap_days: BTreeMap::new(),
        open: Vec::new(),
        begun: Vec::new(),
    };
    begin(&mut ledger, rules, at(own_clock), Unique(1));
    ledger.begun
}

/// The ledger of one user, and the steps of granters on it.
pub struct User {
    pub ledger: UserLedger,
    rules: Programme,
    serial: u128,
}

impl User {
    pub fn new(more: &str) -> Self {
        let ledger = UserLedger {
            now: at("2027-01-01T00:00:00Z"),
            run: None,
            claims: BTreeMap::new(),
            rows: BTreeMap::new(),
            refusals: BTreeMap::new(),
        };
        Self { ledger, rules: programme(more), serial: 1 }
    }

    /// Opens the run of a day with the user as a member.
    pub fn day(&mut self, day: Date, calendar: Calendar) -> Candidate {
        self.ledger.now = self.rules.at(day, self.rules.starts_at).unwrap();
        let now = self.ledger.now.to_string();
        let (_, mut run) = begun(&now, &now, Some(day), &self.rules).remove(0);
        run.frozen = 1;
        self.ledger.run = Some(Arc::new(run));
        self.ledger.claims = BTreeMap::from([(calendar, vec![ShardId::from_u64(1).unwrap()])]);
        let run = RunKey { programme: Arc::from("birthday"), day };
        Candidate { run, member: Member { user: 7, calendar }, wave: 1 }
    }

    pub fn fresh(&mut self) -> Unique {
        self.serial += 1;
        Unique(self.serial)
    }

    pub fn reserve(&mut self, candidate: &Candidate) -> Result<TakenRow, MessageEnd> {
        let attempt = self.fresh();
        reserve(&mut self.ledger, candidate, attempt)
    }

    pub fn issue(&mut self, candidate: &Candidate, taken: &TakenRow) -> Result<(), MessageEnd> {
        issue_user(&mut self.ledger, candidate, taken).map(drop)
    }

    /// Carries out a whole grant and returns how it ends.
    pub fn grant(&mut self, day: Date, calendar: Calendar) -> Result<(), MessageEnd> {
        let candidate = self.day(day, calendar);
        let taken = self.reserve(&candidate)?;
        self.issue(&candidate, &taken)?;
        settle(&mut self.ledger, &candidate, &taken.key, &taken.coupon, taken.version);
        Ok(())
    }
}

pub fn row(solar: (u8, u8), lunar: Option<(u8, u8)>, calendar: Calendar) -> SourceRow {
    SourceRow {
        born: None,
        solar: MonthDay::new(solar.0, solar.1),
        lunar: lunar.and_then(|(month, day)| LunarMonthDay::new(month, day)),
        calendar,
        changed_at: None,
    }
}
