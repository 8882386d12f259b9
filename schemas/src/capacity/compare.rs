//! Three ways to shard an inventory of serial codes (tables only, by agent, by uuid) with their content and costs.

use crate::capacity::serial_codes::Inventory;
use crate::capacity::sheet::{Figure, Sheet, Unit};
use crate::capacity::term::{Amount, Term};

/// One way to shard.
#[derive(Debug)]
pub struct Sharding {
    pub name: &'static str,
    pub figures: Vec<Figure>,
    pub costs: &'static str,
}

pub fn shardings(inventory: &Inventory) -> [Sharding; 3] {
    let one = Term::number(1.0, "database");
    let all = Term::number(inventory.databases, "databases");
    let even = one.per(&all);
    let largest = Amount::of(inventory.largest_agent);
    let largest = Term::written(largest, format!("{} % of the largest agent", largest.scaled(0.01)));
    // The database of the largest agent holds at least that agent.
    let of_largest = if largest.amount.low > even.amount.low { largest } else { even.clone() };
    let every_agent = Term::number(inventory.agents, "agents");
    let whole = one.per(&one);
    [
        Sharding {
            name: "tables_only",
            figures: figures(inventory, &one, &whole, &every_agent, &one),
            costs: "no distributed transaction; every agent waits for one server, which cannot be made larger for ever",
        },
        Sharding {
            name: "by_agent",
            figures: figures(
                inventory,
                &all,
                &of_largest,
                &every_agent.per(&all).rounded_up(),
                &Term::number(2.0, "databases (of either agent)"),
            ),
            costs: "an outage stays with the agents of one database; rows move between databases in a transfer; the \
                    database of the largest agent is full first",
        },
        Sharding {
            name: "by_uuid",
            figures: figures(inventory, &all, &even, &every_agent, &all),
            costs: "databases fill evenly and rows stay in a transfer; that one agent's load stays with that agent is \
                    given up, and a transfer may write in every database",
        },
    ]
}

fn figures(
    inventory: &Inventory,
    databases: &Term,
    largest_share: &Term,
    agents_out: &Term,
    transfer: &Term,
) -> Vec<Figure> {
    let mut sheet = Sheet::new("compare");
    let in_each = Term::number(inventory.tables, "tables in each");
    let rows = Term::named(inventory.rows_per_table, "rows a table");
    let devices = Term::number(inventory.devices_per_year, "devices a year");
    let tables = databases.times(&in_each);
    let tables = sheet.add("tables", "tables", Unit::Count("tables"), &tables);
    let max = tables.times(&rows);
    sheet.add("rows_max", "rows that all tables hold", Unit::Count("rows"), &max);
    let share = sheet.add(
        "largest_share",
        "share of all devices in the fullest database",
        Unit::Share,
        largest_share,
    );
    let share = Term::written(largest_share.amount, share.formula().to_owned());
    let years = in_each.times(&rows).per(&devices.times(&share));
    sheet.add("years", "until the fullest database is full", Unit::Count("years"), &years);
    sheet.add("agents_out", "agents that feel the outage of one database", Unit::Count("agents"), agents_out);
    sheet.add(
        "transfer_databases",
        "databases that one transfer writes in, at most",
        Unit::Count("databases"),
        transfer,
    );
    sheet.add(
        "lookup_tables",
        "tables that a code is looked for in, without mapping tables",
        Unit::Count("tables"),
        &tables,
    );
    sheet.note(
        "with mapping tables a code leads to one mapping table, and its uuid to one inventory table by uuid",
    );
    sheet.figures
}
