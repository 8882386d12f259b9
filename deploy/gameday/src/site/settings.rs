//! Changes the configuration file of the first daemon, and starts the daemon with it.

use super::{CURRENT_MAX, Site, write_private};
use crate::error::{GamedayError, Result};

impl Site {
    /// Has readers stop at changes that row events do not show, in place of reading the table again.
    pub(super) async fn stop_at_unseen_changes(&mut self) -> Result<()> {
        let text = self.text.replace("[[entities]]\n", "[[entities]]\nunseen_changes = \"stop\"\n");
        self.start_with(&text).await
    }

    /// Takes a source out of the file, as for one that left for good.
    pub(super) async fn take_source_out(&mut self, source: &str) -> Result<()> {
        let Some(text) = without_source(&self.text, source) else {
            let error = std::io::Error::other(format!("it has no source {source}"));
            return Err(GamedayError::File { action: "use", path: self.file.clone(), source: error });
        };
        self.start_with(&text).await
    }

    /// Takes all changes of the file back.
    pub(super) async fn restore_file(&mut self) -> Result<()> {
        let text = self.text.clone();
        self.start_with(&text).await
    }

    /// Starts the daemon with this text as its file; returns when everything is current.
    pub(super) async fn start_with(&mut self, text: &str) -> Result<()> {
        write_private(&self.file, text)?;
        self.start_daemon(&[])?;
        self.until_current(CURRENT_MAX).await
    }
}

/// Returns a configuration without the section of this source; `None` if it has none.
fn without_source(text: &str, source: &str) -> Option<String> {
    let begin = text.find(&format!("[[sources]]\nname = \"{source}\"\n"))?;
    let section = &text[begin..];
    let length = section.find("\n[").map_or(section.len(), |end| end + 1);
    Some(format!("{}{}", &text[..begin], &section[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_leaves_the_file_with_its_own_lines_alone() {
        let section = |name: &str| format!("\n[[sources]]\nname = \"{name}\"\nurl = \"mysql://u:p@[::1]\"\n");
        let (first, second) = (section("a"), section("b"));
        let further = "\n[[targets]]\nname = \"b\"\n";
        let text = format!("name = \"n\"\n{first}{second}{further}");
        let left = format!("name = \"n\"\n{first}\n[[targets]]\nname = \"b\"\n");
        assert_eq!(without_source(&text, "b"), Some(left));
        assert_eq!(without_source(&format!("{first}{second}"), "b"), Some(format!("{first}\n")));
        assert_eq!(without_source(&text, "c"), None);
    }
}
