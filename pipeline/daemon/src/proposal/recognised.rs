//! Recognises the entity of a table's rows by the names and types of its columns.

use anabranch_pipeline::config::ColumnNames;
use anabranch_schemas::change::Entity;

use crate::wiring::{SurveyedColumn, accepts_data_type};

/// Fields that a device's table has under their own names, at least; the others are missing.
const SERIAL_FIELDS_MIN: usize = 4;
/// Names of keys of users, where the primary key has more than one column.
const USER_KEYS: [&str; 3] = ["user_id", "uid", "id"];

/// An entity that the columns fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recognised {
    pub entity: Entity,
    /// Fields of the entity and the columns that hold them, under the names of all tables that were looked at.
    pub columns: Vec<(&'static str, ColumnNames)>,
    /// Fields without which the table cannot be captured, and for which no column was found.
    pub missing: Vec<&'static str>,
    /// Fields that may be captured too, and the columns that seem to hold them.
    pub optional: Vec<(&'static str, String)>,
}

impl Recognised {
    /// Adds the names that the columns have in another table of the same entity.
    pub fn add_names(&mut self, other: &Self) {
        for (field, names) in &mut self.columns {
            let others = other.columns.iter().filter(|(known, _)| *known == *field).map(|(_, names)| names);
            *names = others.flat_map(ColumnNames::iter).fold(names.clone(), ColumnNames::or);
        }
    }
}

/// Returns the entity that a table's columns fit; `None` = no entity.
pub fn recognise(columns: &[SurveyedColumn]) -> Option<Recognised> {
    serial_code(columns).or_else(|| user(columns))
}

fn serial_code(columns: &[SurveyedColumn]) -> Option<Recognised> {
    let fields = Entity::SerialCode.field_names();
    let mut recognised = Recognised {
        entity: Entity::SerialCode,
        columns: Vec::new(),
        missing: Vec::new(),
        optional: Vec::new(),
    };
    for (place, field) in fields.iter().enumerate() {
        let fits = |column: &&SurveyedColumn| {
            column.name.eq_ignore_ascii_case(field)
                && accepts_data_type(Entity::SerialCode, place, &column.data_type)
        };
        match columns.iter().find(fits) {
            Some(column) => recognised.columns.push((*field, column.name.as_str().into())),
            None => recognised.missing.push(field),
        }
    }
    let has_uuid = !recognised.missing.contains(&"uuid");
    (has_uuid && recognised.columns.len() >= SERIAL_FIELDS_MIN).then_some(recognised)
}

fn user(columns: &[SurveyedColumn]) -> Option<Recognised> {
    let accepts =
        |field: usize, column: &SurveyedColumn| accepts_data_type(Entity::User, field, &column.data_type);
    let is_called = |column: &SurveyedColumn, part: &str| column.name.to_ascii_lowercase().contains(part);
    let is_birthday =
        |column: &SurveyedColumn| ["birth", "born", "dob"].iter().any(|part| is_called(column, part));
    let key: Vec<&SurveyedColumn> = columns.iter().filter(|column| column.is_primary_key).collect();
    let key = match key.as_slice() {
        [one] => Some(*one),
        _ => USER_KEYS
            .iter()
            .find_map(|name| columns.iter().find(|column| column.name.eq_ignore_ascii_case(name))),
    };
    let key = key.filter(|key| accepts(0, key))?;
    let solar = |column: &&SurveyedColumn| {
        is_birthday(column)
            && accepts(1, column)
            && !["lunar", "type", "change", "update", "place", "city"]
                .iter()
                .any(|part| is_called(column, part))
    };
    // A date says more than a text does, and the usual name more than another one.
    let rank = |column: &&SurveyedColumn| {
        (!column.name.eq_ignore_ascii_case("birthday"), !column.data_type.starts_with("date"))
    };
    let birthday = columns.iter().filter(solar).min_by_key(rank)?;
    let find = |field: usize, part: &str| {
        columns.iter().find(|column| is_birthday(column) && is_called(column, part) && accepts(field, column))
    };
    let mut optional = Vec::new();
    if let Some(lunar) = find(2, "lunar") {
        optional.push(("lunar_birthday", lunar.name.clone()));
        optional.extend(find(3, "type").map(|kind| ("birthday_type", kind.name.clone())));
    }
    Some(Recognised {
        entity: Entity::User,
        columns: vec![("user_id", key.name.as_str().into()), ("birthday", birthday.name.as_str().into())],
        missing: Vec::new(),
        optional,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(described: &str) -> Vec<SurveyedColumn> {
        described
            .split(", ")
            .map(|column| {
                let mut parts = column.split(' ');
                let (name, data_type) = (parts.next().unwrap(), parts.next().unwrap());
                let is_primary_key = parts.next() == Some("PK");
                SurveyedColumn { name: name.to_owned(), data_type: data_type.to_owned(), is_primary_key }
            })
            .collect()
    }

    fn found(described: &str) -> Option<Vec<(&'static str, String)>> {
        let columns = recognise(&columns(described))?.columns;
        Some(columns.into_iter().map(|(field, names)| (field, names.to_string())).collect())
    }

    #[test]
    fn a_table_with_a_key_and_a_birthday_has_users() {
        let user = |key: &str, birthday: &str| {
            Some(vec![("user_id", key.to_owned()), ("birthday", birthday.to_owned())])
        };
        for (described, expected) in [
            ("user_id bigint PK, user_name varchar, birthday date", user("user_id", "birthday")),
            ("ID int PK, Birth_Date datetime", user("ID", "Birth_Date")),
            ("id int PK, birth_place varchar, birth_date date", user("id", "birth_date")),
            ("tenant int PK, uid char PK, dob varchar", user("uid", "dob")),
            (
                "id int PK, birthday_type varchar, lunar_birthday varchar, birthday varchar",
                user("id", "birthday"),
            ),
            ("id int PK, created date", None),
            ("id binary PK, birthday date", None),
            ("a int PK, b int PK, birthday date", None),
            ("birthday date", None),
        ] {
            assert_eq!(found(described), expected, "{described}");
        }
    }

    #[test]
    fn names_of_other_tables_are_added_once() {
        let recognised = |described: &str| recognise(&columns(described)).unwrap();
        let mut all = recognised("id int PK, birthday date");
        all.add_names(&recognised("ID int PK, birth_date date"));
        all.add_names(&recognised("id int PK, birth_date date"));
        let names: Vec<String> = all.columns.iter().map(|(_, names)| names.to_string()).collect();
        assert_eq!(names, ["id", "birthday or birth_date"]);
    }

    #[test]
    fn lunar_columns_are_told_and_not_captured_by_themselves() {
        let recognised =
            recognise(&columns("id int PK, birthday date, birthday_type varchar, lunar_birthday char"))
                .unwrap();
        assert_eq!(
            recognised.optional,
            [("lunar_birthday", "lunar_birthday".to_owned()), ("birthday_type", "birthday_type".to_owned())]
        );
    }

    #[test]
    fn a_table_with_codes_has_devices_and_what_it_lacks_is_told() {
        let recognised =
            recognise(&columns("uuid bigint PK, IMEI1 varchar, imei2 varchar, meid varchar")).unwrap();
        assert_eq!(recognised.entity, Entity::SerialCode);
        assert_eq!(recognised.columns[1], ("imei1", ColumnNames::from("IMEI1")));
        assert_eq!(recognised.missing.first(), Some(&"box_no"));
        assert_eq!(recognise(&columns("uuid bigint PK, imei1 varchar")), None);
    }
}
