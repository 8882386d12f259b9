//! Finds the sharding rule of an application from the tables in which its rows are.

use anabranch_schemas::shard::{NameHash, ShardingRule, Spread};

/// Rows that show a rule, at least: fewer may fit one by chance.
pub const ROWS_MIN: usize = 20;
/// Rows outside their table by the rule, in percent, at most: a rule with some misplaced rows is a rule.
const MISPLACED_MAX_PERCENT: usize = 5;

/// A row as it was found: the numbers of its table, and the values of some columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub database: u32,
    pub table: u32,
    /// Values in the order of the columns; `None` = NULL.
    pub values: Vec<Option<String>>,
}

/// A rule that puts rows where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRule {
    pub rule: ShardingRule,
    /// Index of the column that the rule reads.
    pub column: usize,
    pub rows: usize,
    /// Rows that are where the rule puts them.
    pub in_place: usize,
}

/// Returns the rule that explains the most rows; `None` where none does, or where there is nothing to explain.
pub fn find(samples: &[Sample], columns: usize, databases: u32, tables: u32) -> Option<FoundRule> {
    let mut places: Vec<_> = samples.iter().map(|sample| (sample.database, sample.table)).collect();
    places.sort_unstable();
    places.dedup();
    if samples.len() < ROWS_MIN || places.len() < 2 {
        return None;
    }
    let mut best: Option<FoundRule> = None;
    for column in 0..columns {
        for hash in [NameHash::Crc32, NameHash::JavaString, NameHash::Decimal] {
            for spread in [Spread::Spread, Spread::Literal] {
                let rule = ShardingRule { hash, spread, databases, tables };
                let stands = |sample: &&Sample| {
                    let place = sample.values[column].as_deref().and_then(|value| rule.locate(value));
                    place == Some((sample.database, sample.table))
                };
                let in_place = samples.iter().filter(stands).count();
                if best.as_ref().is_none_or(|best| in_place > best.in_place) {
                    best = Some(FoundRule { rule, column, rows: samples.len(), in_place });
                }
            }
        }
    }
    best.filter(|found| (found.rows - found.in_place) * 100 <= found.rows * MISPLACED_MAX_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rule: ShardingRule, count: u32) -> Vec<Sample> {
        (0..count)
            .map(|number| {
                let (key, name) = (number.to_string(), format!("name-{number}"));
                let placed_by = if rule.hash == NameHash::Decimal { &key } else { &name };
                let (database, table) = rule.locate(placed_by).unwrap();
                Sample { database, table, values: vec![Some(key), Some(name)] }
            })
            .collect()
    }

    #[test]
    fn each_rule_is_found_by_its_rows_with_a_few_misplaced_ones() {
        for hash in [NameHash::Crc32, NameHash::JavaString, NameHash::Decimal] {
            for spread in [Spread::Spread, Spread::Literal] {
                let rule = ShardingRule { hash, spread, databases: 5, tables: 64 };
                let mut samples = rows(rule, 100);
                samples[7].table += 1;
                samples[9].values = vec![None, None];
                let found = find(&samples, 2, 5, 64).unwrap();
                let column = usize::from(hash != NameHash::Decimal);
                assert_eq!((found.rule, found.column, found.rows, found.in_place), (rule, column, 100, 98));
            }
        }
    }

    #[test]
    fn rows_that_no_rule_explains_have_none() {
        let rule = ShardingRule { hash: NameHash::Crc32, spread: Spread::Spread, databases: 5, tables: 64 };
        let samples = rows(rule, 100);
        assert_eq!(find(&samples, 1, 5, 64), None, "without the column that the rule reads");
        assert_eq!(find(&samples[..ROWS_MIN - 1], 2, 5, 64), None, "too few rows");
        assert_eq!(find(&samples, 2, 5, 63), None, "a table that is missing");
        let one = vec![samples[0].clone(); 100];
        assert_eq!(find(&one, 2, 1, 1), None, "one table needs no rule");
    }
}
