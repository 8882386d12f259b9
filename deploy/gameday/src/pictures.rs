//! Pictures of the page in a browser without a screen, one a drill. A machine without a browser has none.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anabranch_demo::browser::Browser;
use anabranch_stack::Layout;

/// Folder of pictures below the root of the checkout; it is no part of the repository.
const FOLDER: &str = "target/gameday";
/// The sentence at the top of the page.
const SENTENCE: &str = "h1";
/// True as soon as the page has its first event and shows a fault.
const SHOWS_FAULT: &str = "document.querySelector('h1').textContent.length > 0 \
    && !/^(Waiting|Nothing is wrong|All is current)/.test(document.querySelector('h1').textContent)";
/// Wait for a fault in the sentence; of one that leaves everything current, the picture is taken then.
const FAULT_MAX: Duration = Duration::from_secs(4);

/// A browser, if the machine can have one.
#[derive(Debug)]
pub struct Pictures {
    browser: Option<Browser>,
    folder: PathBuf,
}

impl Pictures {
    /// Starts a browser. Without one, the reason is on stderr, and there are no pictures.
    pub async fn start() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
        let started = match Layout::find() {
            Ok(layout) => Browser::start(&layout).await,
            Err(error) => Err(error.into()),
        };
        let browser = started.unwrap_or_else(|error| {
            eprintln!("no pictures are taken: {error}");
            None
        });
        Self { browser, folder }
    }

    pub fn is_there(&self) -> bool {
        self.browser.is_some()
    }

    /// Opens the page and takes a picture of it; returns its sentence. A failure costs the picture alone.
    pub async fn take(&self, page: &str, name: &str) -> Option<String> {
        let browser = self.browser.as_ref()?;
        let sentence = async {
            browser.open(page).await?;
            browser.until(SHOWS_FAULT, FAULT_MAX).await?;
            let sentence = browser.text(SENTENCE).await?;
            let picture = browser.screenshot().await?;
            Ok::<_, anabranch_demo::DemoError>((sentence, picture))
        };
        match sentence.await {
            Ok((sentence, picture)) => {
                let file = self.folder.join(format!("{name}.png"));
                let written = fs::create_dir_all(&self.folder).and_then(|()| fs::write(&file, picture));
                if let Err(error) = written {
                    eprintln!("{}: {error}", file.display());
                }
                Some(sentence.trim().to_owned())
            }
            Err(error) => {
                eprintln!("no picture of {page}: {error}");
                None
            }
        }
    }
}
