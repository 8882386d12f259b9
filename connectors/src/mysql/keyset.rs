//! Conditions that read a table part by part, in the order of one of its keys.

/// Returns the condition for rows after these values (literals) in the order of these columns (quoted). It is spelt
/// out, because the server finds no range for a comparison of lists.
pub(super) fn after_key(columns: &[String], values: &[String]) -> String {
    let mut condition = String::new();
    for (name, value) in columns.iter().zip(values).rev() {
        condition = match condition.as_str() {
            "" => format!("{name} > {value}"),
            rest => format!("({name} > {value} OR ({name} = {value} AND {rest}))"),
        };
    }
    // The first comparison follows from the rest; on the first column alone it is already a range.
    format!("{} >= {} AND {condition}", columns[0], values[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_a_key_of_two_columns() {
        let [columns, values] =
            [["`a`", "`b`"], ["-3", "_gbk x'7827'"]].map(|texts| texts.map(str::to_owned));
        assert_eq!(
            after_key(&columns, &values),
            "`a` >= -3 AND (`a` > -3 OR (`a` = -3 AND `b` > _gbk x'7827'))"
        );
        assert_eq!(after_key(&columns[..1], &values[..1]), "`a` >= -3 AND `a` > -3");
    }
}
