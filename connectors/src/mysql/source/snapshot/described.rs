//! A column of a table as the server describes it.

/// A column in the server's `information_schema`.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) data_type: String,
    pub(super) character_set: String,
    pub(super) collation: String,
    pub(super) unsigned: bool,
    /// Number of the column in the index in question.
    pub(super) place: Option<u32>,
    pub(super) index: Option<String>,
}

impl Described {
    pub(super) fn from_row(
        (name, data_type, character_set, collation, unsigned, place, index): (
            String,
            String,
            String,
            String,
            bool,
            Option<u32>,
            Option<String>,
        ),
    ) -> Self {
        Self { name, data_type, character_set, collation, unsigned, place, index }
    }
}
