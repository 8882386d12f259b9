//! Tables whose names differ in a number of the database and a number of the table: one family, one pattern.

use std::collections::{BTreeMap, BTreeSet};

use anabranch_schemas::shard::{TableNumbers, TablePattern};

/// A table as a server lists it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedTable {
    /// Index of the server that has it.
    pub server: usize,
    pub database: String,
    pub table: String,
}

/// Tables that one pattern names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    pub pattern: TablePattern,
    /// Tables in the order of their names.
    pub tables: Vec<Member>,
}

/// A table of a family, and its numbers in the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub listed: ListedTable,
    pub database: u32,
    pub table: u32,
}

impl Family {
    /// Returns how many databases and tables the numbers leave room for: the highest of each, and one for zero.
    pub fn extent(&self) -> (u32, u32) {
        let most = |number: fn(&Member) -> u32| {
            self.tables.iter().map(number).max().map_or(1, |most| most.saturating_add(1))
        };
        (most(|member| member.database), most(|member| member.table))
    }

    /// Returns the servers that have tables of the family.
    pub fn servers(&self) -> BTreeSet<usize> {
        self.tables.iter().map(|member| member.listed.server).collect()
    }
}

/// A name around its last number; without one all of it is `before`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Split {
    before: String,
    digits: Option<String>,
    after: String,
}

impl Split {
    fn of(name: &str) -> Self {
        let whole = || Self { before: name.to_owned(), digits: None, after: String::new() };
        let is_digit = |character: char| character.is_ascii_digit();
        let Some(last) = name.rfind(is_digit) else { return whole() };
        let end = last + 1;
        let start = name[..end]
            .rfind(|character| !is_digit(character))
            .map_or(0, |before| before + name[before..].chars().next().map_or(1, char::len_utf8));
        if name[start..end].parse::<u32>().is_err() {
            return whole();
        }
        Self {
            before: name[..start].to_owned(),
            digits: Some(name[start..end].to_owned()),
            after: name[end..].to_owned(),
        }
    }

    /// Returns the digits of the number; 0 without one.
    fn width(&self) -> usize {
        self.digits.as_ref().map_or(0, String::len)
    }

    fn frame(&self) -> (String, Option<()>, String) {
        (self.before.clone(), self.digits.as_ref().map(|_| ()), self.after.clone())
    }
}

/// Returns the families of these tables, the largest first. A table whose name no pattern can have is in none.
pub fn families(listed: impl IntoIterator<Item = ListedTable>) -> Vec<Family> {
    let mut framed = BTreeMap::<_, Vec<ListedTable>>::new();
    for table in listed {
        let frames = (Split::of(&table.database).frame(), Split::of(&table.table).frame());
        framed.entry(frames).or_default().push(table);
    }
    let mut families = Vec::new();
    for mut rest in framed.into_values() {
        while !rest.is_empty() {
            let Some((family, others)) = narrowest(rest) else { break };
            families.push(family);
            rest = others;
        }
    }
    families.sort_by(|one, other| {
        (other.tables.len(), one.pattern.to_string()).cmp(&(one.tables.len(), other.pattern.to_string()))
    });
    families
}

/// Returns the tables of the pattern with the shortest numbers, and the others; `None` if no pattern can name them.
fn narrowest(tables: Vec<ListedTable>) -> Option<(Family, Vec<ListedTable>)> {
    // The table with the shortest numbers gives the widths, so the pattern names at least this one.
    let widths = |table: &ListedTable| (Split::of(&table.database).width(), Split::of(&table.table).width());
    let (database, table) = tables.iter().map(widths).min()?;
    let database = pattern_of(tables.iter().map(|table| table.database.as_str()), "db", database);
    let table = pattern_of(tables.iter().map(|table| table.table.as_str()), "table", table);
    let pattern = TablePattern::parse(&format!("{database}.{table}")).ok()?;
    let (mut members, mut others) = (Vec::new(), Vec::new());
    for listed in tables {
        match pattern.matches(&listed.database, &listed.table) {
            Some(TableNumbers { database, table, .. }) => members.push(Member { listed, database, table }),
            None => others.push(listed),
        }
    }
    members.sort_by(|one, other| one.listed.cmp(&other.listed));
    (!members.is_empty()).then_some((Family { pattern, tables: members }, others))
}

/// Returns the pattern of names that differ in a number of this width at most, or the single name.
fn pattern_of<'n>(names: impl Iterator<Item = &'n str>, placeholder: &str, width: usize) -> String {
    let names: BTreeSet<&str> = names.collect();
    let Some(first) = names.first() else { return String::new() };
    let Split { before, digits, after } = Split::of(first);
    match (names.len(), digits.is_some(), width) {
        (1, ..) | (_, false, _) => (*first).to_owned(),
        (_, true, 1) => format!("{before}{{{placeholder}}}{after}"),
        (_, true, width) => format!("{before}{{{placeholder}:{width:02}}}{after}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn listed(name: &str) -> ListedTable {
        let (database, table) = name.split_once('.').unwrap();
        ListedTable { server: 0, database: database.to_owned(), table: table.to_owned() }
    }

    fn patterns(names: &[&str]) -> Vec<(String, usize)> {
        let families = families(names.iter().map(|name| listed(name)));
        families.iter().map(|family| (family.pattern.to_string(), family.tables.len())).collect()
    }

    #[test]
    fn names_that_differ_in_numbers_are_one_family() {
        let names =
            ["user_00.user_000", "user_00.user_001", "user_01.user_000", "shop.order", "shop.order_item"];
        assert_eq!(
            patterns(&names),
            [
                ("user_{db:02}.user_{table:03}".to_owned(), 3),
                ("shop.order".to_owned(), 1),
                ("shop.order_item".to_owned(), 1)
            ]
        );
    }

    #[test]
    fn a_number_that_never_changes_is_a_part_of_the_name() {
        assert_eq!(patterns(&["crm2.user_1", "crm2.user_10"]), [("crm2.user_{table}".to_owned(), 2)]);
        assert_eq!(patterns(&["crm2.user1"]), [("crm2.user1".to_owned(), 1)]);
    }

    #[test]
    fn numbers_of_two_widths_are_two_families() {
        assert_eq!(
            patterns(&["d.t_0", "d.t_1", "d.t_00", "d.t_01", "d.t_10"]),
            [("d.t_{table}".to_owned(), 3), ("d.t_{table:02}".to_owned(), 2)]
        );
    }

    #[test]
    fn odd_names_are_in_no_family_or_stand_for_themselves() {
        assert_eq!(
            patterns(&["a.b{c}", "d.x99999999999", "d.ß7é", "d.ß8é"]),
            [("d.ß{table}é".to_owned(), 2), ("d.x99999999999".to_owned(), 1)]
        );
    }

    proptest! {
        #[test]
        fn every_table_is_in_one_family_at_most_and_its_pattern_names_it(
            names in prop::collection::btree_set(("[a-c]{0,2}[0-9]{0,3}[a-b]{0,1}x", "[a-b]{1,2}[0-9]{0,3}"), 1..40),
        ) {
            let names: Vec<ListedTable> = names
                .into_iter()
                .map(|(database, table)| ListedTable { server: 0, database, table })
                .collect();
            let families = families(names.clone());
            let mut seen = Vec::new();
            for family in &families {
                for member in &family.tables {
                    let named = family.pattern.names(member.database, member.table);
                    prop_assert_eq!(&named, &(member.listed.database.clone(), member.listed.table.clone()));
                    seen.push(member.listed.clone());
                }
            }
            seen.sort();
            let mut expected = names;
            expected.sort();
            prop_assert_eq!(seen, expected);
        }
    }
}
