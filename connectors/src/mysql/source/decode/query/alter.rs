//! Finds the parts of `CREATE TABLE` and `ALTER TABLE` that can change captured values, or how changes are logged,
//! without row events.
//!
//! The caller decides whether a column is captured, and knows its type before the statement.

use super::super::tokens::{Token, Tokens};

/// A change of a table by one part of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableChange {
    /// `IGNORE`: the server may remove rows and bend values.
    Ignore,
    /// The session has no strict mode: the server cuts values that do not fit a new type.
    Lenient,
    /// System versioning: the server logs each update with a row of history after it, and each delete as an update.
    Versioned,
    /// The table loses its system versioning.
    Unversioned,
    /// An engine that rolls back.
    Transactional,
    /// An engine that is not known to roll back.
    Engine(String),
    /// Converts every text column to this character set.
    Convert {
        character_set: Option<String>,
    },
    Drop(String),
    Rename {
        from: String,
        to: String,
    },
    /// Adds a column; `None` = a list of columns in brackets.
    Add(Option<String>),
    /// The column gets this type.
    Retype {
        column: String,
        to: ColumnType,
    },
}

/// A column's type as a statement gives it, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnType {
    pub name: String,
    /// The column's own character set; `None` = the table's.
    pub character_set: Option<String>,
    /// Values of the column follow from an expression that the statement gives.
    pub is_generated: bool,
}

/// Engines that undo changes on a rollback, in lower case.
const TRANSACTIONAL: &[&str] = &["innodb", "rocksdb", "tokudb", "ndb", "ndbcluster"];

/// Types whose rows are logged as raw bytes that look like text, in lower case.
pub const RAW: &[&str] = &["uuid", "inet4", "inet6"];

/// Words after ADD or DROP that are not columns.
const NO_COLUMNS: &[&str] = &[
    "INDEX",
    "KEY",
    "PRIMARY",
    "UNIQUE",
    "FULLTEXT",
    "SPATIAL",
    "FOREIGN",
    "CONSTRAINT",
    "CHECK",
    "PARTITION",
    "PERIOD",
    "SYSTEM",
];

/// Returns the changes of an `ALTER TABLE`; the tokens begin after the table's name.
pub fn of_alter(tokens: Tokens<'_>) -> Vec<TableChange> {
    let (mut outer, _) = parts(tokens);
    let mut changes = Vec::new();
    for part in &mut outer {
        let mut part = Part(part);
        general(&part, &mut changes);
        part.column_change(&mut changes);
    }
    changes
}

/// Returns the parts of a `CREATE TABLE` that make its table unfit; the tokens begin after the table's name.
pub fn of_create(tokens: Tokens<'_>) -> Vec<TableChange> {
    let (mut outer, mut inner) = parts(tokens);
    let mut changes = Vec::new();
    for part in &mut outer {
        general(&Part(part), &mut changes);
    }
    for part in &mut inner {
        general(&Part(part), &mut changes);
        let mut part = Part(part);
        if part.0.first().is_some_and(|first| !NO_COLUMNS.iter().any(|keyword| first.is(keyword)))
            && let Some(column) = part.name()
            && let Some(to) = part.column_type().filter(|to| RAW.contains(&to.name.as_str()))
        {
            changes.push(TableChange::Retype { column, to });
        }
    }
    changes.retain(|change| *change != TableChange::Transactional);
    changes
}

/// Splits a statement at commas: into parts outside of brackets, and parts one bracket deep.
fn parts(tokens: Tokens<'_>) -> (Vec<Vec<Token>>, Vec<Vec<Token>>) {
    let (mut outer, mut inner) = (vec![Vec::new()], vec![Vec::new()]);
    let mut depth = 0u32;
    for token in tokens {
        match token {
            Token::Symbol(b'(') => {
                depth += 1;
                let target = if depth == 1 { &mut outer } else { &mut inner };
                // The bracket shows that a list is in place of a name.
                push(target, Token::Symbol(b'('));
                if depth == 1 {
                    inner.push(Vec::new());
                }
            }
            Token::Symbol(b')') => depth = depth.saturating_sub(1),
            Token::Symbol(b',') if depth == 0 => outer.push(Vec::new()),
            Token::Symbol(b',') if depth == 1 => inner.push(Vec::new()),
            token if depth == 0 => push(&mut outer, token),
            token if depth == 1 => push(&mut inner, token),
            _ => {}
        }
    }
    (outer, inner)
}

fn push(parts: &mut [Vec<Token>], token: Token) {
    if let Some(part) = parts.last_mut() {
        part.push(token);
    }
}

/// Collects the changes that may be anywhere in a part.
fn general(part: &Part<'_>, changes: &mut Vec<TableChange>) {
    let tokens = &part.0;
    for (at, token) in tokens.iter().enumerate() {
        let next = |ahead: usize| tokens.get(at + ahead);
        let is_next = |ahead: usize, keyword: &str| next(ahead).is_some_and(|token| token.is(keyword));
        if (token.is("WITH") || token.is("ADD")) && is_next(1, "SYSTEM") && is_next(2, "VERSIONING") {
            changes.push(TableChange::Versioned);
        }
        if token.is("DROP") && is_next(1, "SYSTEM") && is_next(2, "VERSIONING") {
            changes.push(TableChange::Unversioned);
        }
        let is_assigned = next(1) == Some(&Token::Symbol(b'='));
        if token.is("ENGINE")
            && (is_assigned || at == 0)
            && let Some(name) = next(if is_assigned { 2 } else { 1 }).and_then(Token::name)
        {
            let is_transactional = TRANSACTIONAL.contains(&name.to_ascii_lowercase().as_str());
            changes.push(match is_transactional {
                true => TableChange::Transactional,
                false => TableChange::Engine(name.to_owned()),
            });
        }
        if token.is("CONVERT") && is_next(1, "TO") {
            changes.push(TableChange::Convert { character_set: character_set(tokens) });
        }
    }
}

/// The tokens of one part that are not read yet.
struct Part<'t>(&'t [Token]);

impl Part<'_> {
    fn skip(&mut self, keywords: &[&str]) -> bool {
        let before = self.0.len();
        while let [first, rest @ ..] = self.0
            && keywords.iter().any(|keyword| first.is(keyword))
        {
            self.0 = rest;
        }
        self.0.len() < before
    }

    fn name(&mut self) -> Option<String> {
        let [first, rest @ ..] = self.0 else { return None };
        let name = first.name()?.to_owned();
        self.0 = rest;
        Some(name)
    }

    fn column_type(&self) -> Option<ColumnType> {
        let name = self.0.first()?.name()?.to_ascii_lowercase();
        let is_generated = self.0.iter().any(|token| token.is("AS"));
        Some(ColumnType { name, character_set: character_set(self.0), is_generated })
    }

    fn column_change(&mut self, changes: &mut Vec<TableChange>) {
        let [verb, rest @ ..] = self.0 else { return };
        self.0 = rest;
        let has_column = self.skip(&["COLUMN"]);
        self.skip(&["IF", "NOT", "EXISTS"]);
        let is_no_column =
            !has_column && self.0.first().is_some_and(|token| NO_COLUMNS.iter().any(|word| token.is(word)));
        if verb.is("DROP") && !is_no_column {
            changes.extend(self.name().map(TableChange::Drop));
        } else if verb.is("ADD") && !is_no_column {
            let column = self.name();
            changes.push(TableChange::Add(column.clone()));
            // A new column has no values to change; only its form in row events matters.
            let to = self.column_type().filter(|to| RAW.contains(&to.name.as_str()));
            if let Some((column, to)) = column.zip(to) {
                changes.push(TableChange::Retype { column, to });
            }
        } else if verb.is("MODIFY") {
            if let Some(column) = self.name()
                && let Some(to) = self.column_type()
            {
                changes.push(TableChange::Retype { column, to });
            }
        } else if verb.is("CHANGE") {
            let (Some(from), Some(column)) = (self.name(), self.name()) else { return };
            if !from.eq_ignore_ascii_case(&column) {
                changes.push(TableChange::Rename { from, to: column.clone() });
            }
            changes.extend(self.column_type().map(|to| TableChange::Retype { column, to }));
        } else if verb.is("RENAME") && has_column {
            let Some(from) = self.name() else { return };
            self.skip(&["TO"]);
            changes.extend(self.name().map(|to| TableChange::Rename { from, to }));
        }
    }
}

/// Returns the character set that these tokens name, by itself or by a collation of it.
fn character_set(tokens: &[Token]) -> Option<String> {
    let named = |at: usize| tokens.get(at).and_then(Token::name).map(str::to_ascii_lowercase);
    for (at, token) in tokens.iter().enumerate() {
        let is_assigned = |at: usize| usize::from(tokens.get(at) == Some(&Token::Symbol(b'=')));
        if token.is("CHARSET") {
            return named(at + 1 + is_assigned(at + 1));
        }
        if (token.is("CHARACTER") || token.is("CHAR"))
            && tokens.get(at + 1).is_some_and(|next| next.is("SET"))
        {
            return named(at + 2 + is_assigned(at + 2));
        }
    }
    if tokens.iter().any(|token| token.is("UNICODE")) {
        return Some("ucs2".to_owned());
    }
    if tokens.iter().any(|token| token.is("ASCII")) {
        return Some("latin1".to_owned());
    }
    let at = tokens.iter().position(|token| token.is("COLLATE"))?;
    let collation = named(at + 1 + usize::from(tokens.get(at + 1) == Some(&Token::Symbol(b'='))))?;
    collation.split('_').next().map(str::to_owned)
}
