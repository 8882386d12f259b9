//! `manual` writes pages for `man`: one for each command, and one for the configuration file. It makes the pages of
//! commands from the definitions that parse the arguments. The page of the file shows the example, which explains every
//! key.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anabranch_pipeline::error::{Code, Fault};
use clap::{Args, CommandFactory};
use clap_mangen::roff::{Roff, roman};

use super::{Cli, Outcome};
use crate::exit::Exit;
use crate::output;

const EXAMPLE: &str = include_str!("../../../../deploy/anabranch.example.toml");
/// Name of the page of the configuration file: section 5 of a manual has the formats of files.
const FILE_PAGE: &str = "anabranch.toml.5";

/// Write manual pages of all commands, and one of the configuration file, into a folder
#[derive(Debug, Args)]
pub struct Arguments {
    /// Folder of the pages; it is made if it is missing, and pages of the same names are replaced
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn run(arguments: &Arguments) -> Outcome {
    let folder = &arguments.folder;
    write(folder).map_err(|error| {
        let subject = format!("folder {}", folder.display());
        vec![
            Fault::new(Code::FileUnwritable, subject, "manual pages cannot be written there")
                .needs("a folder that this account may write to")
                .caused_by(error),
        ]
    })?;
    _ = output::line(&format!("written: manual pages in {}", folder.display()));
    Ok(Exit::Success)
}

fn write(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)?;
    fs::write(folder.join(FILE_PAGE), file_page())
}

/// Returns the page of the configuration file: the example, line by line.
fn file_page() -> String {
    let mut page = Roff::new();
    // The third argument is the date. The page has none, and roff writes an empty argument as a pair of quotes.
    page.control("TH", ["anabranch.toml", "5", "\"\"", concat!("anabranch ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]);
    page.text([roman("anabranch.toml - configuration file of anabranch")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "The file is TOML. Commands read it from --config FILE or from the environment variable ANABRANCH_CONFIG. \
         The example below explains every key. Keys that are commented out show their default.",
    )]);
    page.control("SH", ["EXAMPLE"]);
    page.control("nf", []);
    page.text([roman(EXAMPLE.trim_end())]);
    page.control("fi", []);
    page.render()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pages_of(command: &clap::Command, name: &str, pages: &mut BTreeSet<String>) {
        pages.insert(format!("{name}.1"));
        for inner in command.get_subcommands() {
            pages_of(inner, &format!("{name}-{}", inner.get_name()), pages);
        }
    }

    #[test]
    fn each_command_has_a_page_and_so_has_the_file() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let mut expected = BTreeSet::from([FILE_PAGE.to_owned()]);
        pages_of(&Cli::command(), "anabranch", &mut expected);
        let written: BTreeSet<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(written, expected);
        assert!(written.contains("anabranch-dead-letters-retry.1"), "{written:?}");
    }

    /// Roff takes a line that begins with a full stop or an apostrophe for a request. The one left here is `.fi`, which
    /// ends the example.
    #[test]
    fn no_line_of_the_example_is_taken_for_a_request_of_roff() {
        let page = file_page();
        let (_, example) = page.split_once(".nf\n").unwrap();
        let requests = example.lines().filter(|line| line.starts_with(['.', '\''])).count();
        assert_eq!((requests, example.lines().count()), (1, EXAMPLE.lines().count() + 1));
    }
}
