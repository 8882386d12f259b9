//! Output of `begin-anew`, with and without `--touched`: the fields of both, and the lines of text around their own.

use anabranch_schemas::lsn::Lsn;
use serde::Serialize;

use super::Arguments;
use crate::output;

/// The part of the output that both have.
#[derive(Debug, Serialize)]
pub(super) struct RequestView<'a> {
    pub(super) source: &'a str,
    pub(super) id: &'a str,
    pub(super) server: String,
    /// Reason why the source cannot be read on; `None` for a repeated request.
    pub(super) why: Option<&'a str>,
    /// Position up to which everything was read, if one is known.
    pub(super) read_up_to: Option<String>,
    pub(super) dry_run: bool,
    /// The same request was written before, so this one wrote nothing.
    pub(super) repeated: bool,
}

/// Verbs of the text's first line.
pub(super) struct Verbs {
    /// The same request was written before.
    pub(super) repeated: &'static str,
    /// Nothing is written.
    pub(super) rehearsed: &'static str,
    /// The request is written now.
    pub(super) written: &'static str,
}

impl RequestView<'_> {
    /// Returns the text of a request: `object` follows the verb, and `own` are lines that the other kind lacks.
    pub(super) fn text(&self, verbs: &Verbs, object: &str, own: Vec<String>) -> String {
        let verb = match () {
            () if self.repeated => verbs.repeated,
            () if self.dry_run => verbs.rehearsed,
            () => verbs.written,
        };
        let mut lines = vec![format!("source {} {verb} {object}", self.source)];
        lines.extend(self.why.map(|why| format!("  why         {why}")));
        lines.extend(self.read_up_to.as_ref().map(|position| format!("  read up to  {position}")));
        lines.extend(own);
        lines.push(format!("  id          {}", self.id));
        lines.join("\n")
    }
}

/// Returns the state before the request, for the record of the operation: how far the source was read, and why it
/// cannot be read on.
pub(super) fn state_before(read: Option<Lsn>, why: Option<&str>) -> Option<String> {
    let read = read.map(|position| format!("read up to {position}"));
    let why = why.map(|why| format!("not read on, because of {why}"));
    let known: Vec<String> = read.into_iter().chain(why).collect();
    (!known.is_empty()).then(|| known.join("; "))
}

/// Prints a view as JSON or as text.
pub(super) fn print(arguments: &Arguments, view: &impl Serialize, text: impl FnOnce() -> String) {
    let text = if arguments.json { output::json(view) } else { text() };
    _ = output::line(&text);
}
