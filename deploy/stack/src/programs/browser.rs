//! A browser without a screen for tests of pages: Chromium, and the server through which programs use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Programs, apt, run, version};
use crate::error::{FileContext, Result};

/// Name of these programs in errors.
pub(crate) const BROWSER: &str = "Chromium";
/// This browser needs neither a screen nor a toolkit. Its closure has fonts.
const PACKAGES: [&str; 1] = ["chromium-headless-shell"];
/// This package depends on the browser with a screen, which would add 70 MB; all libraries of the driver are there.
const ALONE: [&str; 1] = ["chromium-driver"];
const DRIVER: &str = "chromedriver";
/// Browsers that are taken from PATH, each with the name by which the driver knows its kind.
const ON_PATH: [(&str, &str); 4] = [
    ("chromium-headless-shell", SHELL),
    ("chromium", FULL),
    ("chromium-browser", FULL),
    ("google-chrome", FULL),
];
const SHELL: &str = "chrome-headless-shell";
const FULL: &str = "chrome";
/// The unpacked fonts, and nothing of the system: pages then look alike on every machine.
const FONTS: &str = r#"<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir prefix="relative">root/usr/share/fonts</dir>
  <include ignore_missing="yes" prefix="relative">root/etc/fonts/conf.d</include>
</fontconfig>
"#;
const FONTS_FILE: &str = "fonts.conf";
/// A library that Chromium links lies here, below the folder of libraries.
const FURTHER_LIBRARIES: &str = "pulseaudio";
const HELP: &str = "install Chromium and its driver yourself so that chromium and chromedriver are on PATH, on Debian: \
    apt-get install --no-install-recommends chromium chromium-driver";

/// A browser of this machine, and its WebDriver server.
#[derive(Debug, Clone)]
pub struct BrowserPrograms {
    /// The WebDriver server, which starts the browser.
    pub driver: PathBuf,
    pub browser: PathBuf,
    /// The name of the browser's kind in a request for a session.
    pub name: &'static str,
    /// Variables of both programs.
    pub environment: Vec<(String, String)>,
}

impl BrowserPrograms {
    /// Returns whether the browser can have a screen: then it must be told to do without.
    pub fn can_have_a_screen(&self) -> bool {
        self.name == FULL
    }
}

impl Programs {
    /// Returns a browser and a driver of the same version.
    pub(crate) fn browser(&self) -> Result<BrowserPrograms> {
        match self.browser_on_path() {
            Some(found) => Ok(found),
            None => in_prefix(&self.install(BROWSER, "browser", unpack)?),
        }
    }

    fn browser_on_path(&self) -> Option<BrowserPrograms> {
        let driver = self.on_path(DRIVER)?;
        let major = |program: &Path| version(program, &["--version"]).map(|(major, _)| major);
        let wanted = major(&driver)?;
        ON_PATH.into_iter().find_map(|(program, name)| {
            let browser = self.on_path(program)?;
            let is_wanted = major(&browser)? == wanted;
            is_wanted.then(|| BrowserPrograms {
                driver: driver.clone(),
                browser,
                name,
                environment: Vec::new(),
            })
        })
    }
}

fn unpack(folder: &Path) -> Result<()> {
    apt::unpack_with(folder, BROWSER, &PACKAGES, &ALONE)?;
    let fonts = folder.join(FONTS_FILE);
    fs::write(&fonts, FONTS).file("write", &fonts)?;
    let unpacked = in_prefix(folder)?;
    // A missing library shows here, before a test waits for the browser.
    for program in [&unpacked.driver, &unpacked.browser] {
        let environment = unpacked.environment.iter().map(|(name, value)| (name, value));
        run(Command::new(program).arg("--version").envs(environment), HELP)?;
    }
    Ok(())
}

fn in_prefix(folder: &Path) -> Result<BrowserPrograms> {
    let root = folder.join("root");
    let libraries = apt::library_path(&root)?;
    let further = libraries.split(':').map(|folder| format!("{folder}/{FURTHER_LIBRARIES}"));
    let all: Vec<String> = libraries.split(':').map(str::to_owned).chain(further).collect();
    Ok(BrowserPrograms {
        driver: root.join("usr/bin").join(DRIVER),
        browser: root.join("usr/lib/chromium/chromium-headless-shell"),
        name: SHELL,
        environment: vec![
            ("LD_LIBRARY_PATH".to_owned(), all.join(":")),
            ("FONTCONFIG_FILE".to_owned(), folder.join(FONTS_FILE).display().to_string()),
        ],
    })
}
