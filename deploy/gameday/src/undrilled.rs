//! The alerts that no drill fires, each with its reason. A test compares them with the rules and the drills.

/// Returns the reason why no drill fires this alert; `None` = a drill does.
pub fn reason(alert: &str) -> Option<&'static str> {
    REASONS.iter().find(|(name, _)| *name == alert).map(|(_, reason)| *reason)
}

/// Each alert without a drill, and the reason. Between back-ticks stand a folder of `tests/` and one of its tests.
const REASONS: [(&str, &str); 7] = [
    (
        "AnabranchLaneReadsBinlog",
        "a lane of this size leaves the binlog within seconds, and `end_to_end: \
         a_damaged_message_is_named_and_its_rows_come_from_the_binlog` makes the state",
    ),
    (
        "AnabranchRemovalOwed",
        "a target removes the rows of a table of this size within a second, and `simulation: \
         a_truncated_table_goes_in_parts_with_other_changes_in_between` makes the state",
    ),
    (
        "AnabranchReconciliationWindowShort",
        "it needs the windows of three nights, and `end_to_end: \
         a_reconciliation_whose_window_is_too_short_is_paused_and_goes_on_and_the_third_time_somebody_is_told` \
         makes the state",
    ),
    (
        "AnabranchReconciliationHeld",
        "it needs a server that is busy for an hour, and `end_to_end: \
     a_reconciliation_waits_for_a_busy_source_passes_its_gate_by_word_only_and_begins_again_without_its_checkpoint` \
         makes the state",
    ),
    (
        "AnabranchPaymentNumbersScarce",
        "no step of its section gives numbers back, so it lasts until the next day, and `end_to_end: \
         a_chain_of_documents_gets_identifiers_that_say_where_each_is_stored` makes the state",
    ),
    (
        "AnabranchDocumentsMisplaced",
        "the installation orders identifiers of payment documents and captures no documents, and `end_to_end: \
         wrong_documents_are_counted_and_listed_and_hold_up_no_right_one` makes the state",
    ),
    (
        "AnabranchTableLeftEarly",
        "the installation orders identifiers of payment documents and captures no documents, and `end_to_end: \
         documents_of_a_dropped_month_are_found_beside_those_of_the_next_table_of_that_name` makes the state",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::prometheus::{RULES, rules};
    use crate::scenario::Expected;
    use crate::scenarios;

    #[test]
    fn each_alert_has_a_drill_or_a_reason_and_none_has_both() {
        let drilled: BTreeSet<&str> = scenarios::all()
            .into_iter()
            .filter_map(|scenario| match scenario.alert {
                Expected::Alert { name, .. } => Some(name),
                Expected::Nobody(_) => None,
            })
            .collect();
        let rules = rules(RULES);
        for rule in &rules {
            let (name, has_drill) = (rule.name.as_str(), drilled.contains(&*rule.name));
            assert_eq!(has_drill, reason(name).is_none(), "{name}: a drill, or a reason why it has none");
        }
        for (name, _) in REASONS {
            assert!(rules.iter().any(|rule| rule.name == name), "no rule is called {name}");
        }
        let names: BTreeSet<&str> = REASONS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), REASONS.len(), "an alert has two reasons");
    }

    #[test]
    fn each_test_that_a_reason_names_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
        let mut found = 0;
        for (alert, reason) in REASONS {
            let named = reason.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.split_once(": "));
            for (folder, test) in named {
                let files = fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
                let mut texts = files.filter(|path| path.is_file()).map(|path| fs::read(path).unwrap());
                let wanted = format!("fn {test}(");
                let is_there = texts.any(|text| String::from_utf8_lossy(&text).contains(&wanted));
                assert!(is_there, "{alert}: {folder} has no test {test}");
                found += 1;
            }
        }
        assert_eq!(found, REASONS.len(), "a reason names no test");
    }
}
