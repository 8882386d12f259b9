//! The newest coupons of users, of all programmes; the columns of birthday tables follow them.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_coupons::columns::LastCoupon;
use anabranch_coupons::records::part;
use anabranch_pipeline::error::Fault;
use anabranch_schemas::celebration::{Calendar, Occurrence};
use mysql_async::Row;

use super::MySqlLedger;
use super::cells::Cells;
use super::transaction::{LedgerDecision, READ_ONLY};

impl MySqlLedger {
    /// Returns the newest coupon of each of these users by calendar. Users without a coupon are left out.
    pub async fn last_coupons(
        &self,
        users: &BTreeSet<u64>,
    ) -> Result<BTreeMap<(u64, Calendar), LastCoupon>, Fault> {
        let mut parts: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for user in users {
            parts.entry(part(*user)).or_default().push(user.to_string());
        }
        if parts.is_empty() {
            return Ok(BTreeMap::new());
        }
        let select = |(part, users): (&u64, &Vec<String>)| {
            format!(
                "SELECT `user_id`, `occurrence`, `changed_at` FROM {} WHERE `user_id` IN ({}) AND `state` = 'settled'",
                self.tables.ledger[*part as usize],
                users.join(",")
            )
        };
        let sql = parts.iter().map(select).collect::<Vec<_>>().join(" UNION ALL ");
        self.transact(
            READ_ONLY,
            |_| sql.clone(),
            |sets| {
                let newest = newest(sets.into_iter().flatten()).ok_or_else(|| self.odd("the ledger"))?;
                Ok(LedgerDecision::read(newest))
            },
        )
        .await
    }
}

fn newest(rows: impl Iterator<Item = Row>) -> Option<BTreeMap<(u64, Calendar), LastCoupon>> {
    let mut newest: BTreeMap<(u64, Calendar), LastCoupon> = BTreeMap::new();
    for row in rows {
        let mut cells = Cells::of(row);
        let (user, occurrence): (u64, Occurrence) = (cells.parsed()?, cells.parsed()?);
        let coupon = LastCoupon { year: occurrence.year, settled_at: cells.moment()? };
        let known = newest.entry((user, occurrence.calendar)).or_insert(coupon);
        if coupon.year > known.year {
            *known = coupon;
        }
    }
    Some(newest)
}
