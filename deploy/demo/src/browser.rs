//! A real browser without a screen, for tests of pages and for screenshots: Chromium, asked over WebDriver.
//!
//! Each [`Browser`] is one process of the stack's Chromium with an empty profile. It needs no account and no screen.
//! Its sandbox is off, because many machines give an unprivileged process none; it opens only pages of this checkout.

mod driver;

use std::time::{Duration, Instant};

use anabranch_stack::{BrowserPrograms, Layout};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::{Client, Method};
use serde_json::{Value as Json, json};

use self::driver::Driver;
use crate::error::{DemoError, Result};
use crate::json_client::plain_client;

/// Width and height of a new browser's page.
const SIZE: (u32, u32) = (1280, 900);
/// The key of an element's identity, by the standard.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The first painted content of the page, in milliseconds from the beginning of its request; `null` before.
const FIRST_PAINT: &str = "const paint = performance.getEntriesByName('first-contentful-paint');
    return paint.length === 0 ? null : paint[0].startTime;";
/// Bytes of all finished answers, with an estimate of 300 bytes for the head of each.
const BYTES: &str = "const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    return all.reduce((sum, entry) => sum + entry.transferSize, 0);";

/// A running browser with one page; dropping it ends its processes and removes its profile.
#[derive(Debug)]
pub struct Browser {
    client: Client,
    /// Address of the WebDriver session.
    session: String,
    driver: Driver,
}

/// A key that is no letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Tab,
    Enter,
    Escape,
    Left,
    Right,
    Up,
    Down,
}

/// A circumstance in which the browser shows pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emulation {
    /// A person who prefers the light scheme, the default.
    Light,
    /// A person who prefers the dark scheme.
    Dark,
    /// A network in which no request reaches its server; answers that have begun go on.
    Offline,
    /// A network in which requests reach their servers again.
    Online,
}

impl Browser {
    /// Starts a browser, which is installed at the first call; `None` on a machine that cannot have one, with the
    /// reason on stderr.
    pub async fn start(layout: &Layout) -> Result<Option<Self>> {
        let layout = layout.clone();
        let driver = tokio::task::spawn_blocking(move || match anabranch_stack::browser(&layout)? {
            Some(programs) => Driver::start(&programs).map(|driver| Some((programs, driver))),
            None => Ok(None),
        });
        match driver.await?? {
            Some((programs, driver)) => Self::open_session(&programs, driver).await.map(Some),
            None => Ok(None),
        }
    }

    async fn open_session(programs: &BrowserPrograms, driver: Driver) -> Result<Self> {
        let action = "start the browser";
        let client = plain_client().map_err(|reason| failed(action, reason))?;
        let headless = if programs.can_have_a_screen() { "--headless=new" } else { "--headless" };
        let arguments = [
            headless.to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            // The shared memory of a container is small.
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--force-color-profile=srgb".to_owned(),
            "--enable-precise-memory-info".to_owned(),
            "--lang=en-US".to_owned(),
            format!("--user-data-dir={}", driver.profile()),
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": programs.name,
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "binary": programs.browser, "args": arguments },
        } } });
        let mut browser =
            Self { client, session: format!("http://127.0.0.1:{}/session", driver.port), driver };
        let session = browser.ask(action, Method::POST, "", Some(capabilities)).await?;
        let Some(id) = session["sessionId"].as_str() else {
            return Err(failed(action, format!("a session without an identity: {session}")));
        };
        browser.session = format!("{}/{id}", browser.session);
        browser.driver.note_browser(session["capabilities"]["goog:processID"].as_u64());
        browser.resize(SIZE.0, SIZE.1).await?;
        Ok(browser)
    }

    /// Opens an address; returns when the page and the scripts in it are loaded.
    pub async fn open(&self, url: &str) -> Result<()> {
        self.post("open a page", "/url", json!({ "url": url })).await.map(drop)
    }

    /// Runs a function's body in the page; returns what it returns.
    pub async fn script(&self, body: &str) -> Result<Json> {
        self.script_with(body, &[]).await
    }

    /// Runs a function's body in the page as [`Browser::script`] does, with values in its `arguments`.
    pub async fn script_with(&self, body: &str, arguments: &[Json]) -> Result<Json> {
        let script = json!({ "script": body, "args": arguments });
        self.post("run a script", "/execute/sync", script).await
    }

    /// Waits until an expression is true in the page; returns the time that it took, `None` when that was too long.
    pub async fn until(&self, expression: &str, wait: Duration) -> Result<Option<Duration>> {
        let began = Instant::now();
        let script = format!("return Boolean({expression});");
        while self.script(&script).await? != Json::Bool(true) {
            if began.elapsed() >= wait {
                return Ok(None);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(Some(began.elapsed()))
    }

    /// Returns the visible part of the page as a PNG file.
    pub async fn screenshot(&self) -> Result<Vec<u8>> {
        let action = "take a screenshot";
        let image = self.ask(action, Method::GET, "/screenshot", None).await?;
        BASE64.decode(image.as_str().unwrap_or_default()).map_err(|error| failed(action, error.to_string()))
    }

    /// Returns the messages on the console since the last call, each with its level.
    pub async fn console(&self) -> Result<Vec<String>> {
        let entries = self.post("read the console", "/se/log", json!({ "type": "browser" })).await?;
        let text = |field: &Json| field.as_str().unwrap_or_default().to_owned();
        let line = |entry: &Json| format!("{} {}", text(&entry["level"]), text(&entry["message"]));
        Ok(entries.as_array().into_iter().flatten().map(line).collect())
    }

    /// Gives the page a width and a height in pixels, also below the least size of a window.
    pub async fn resize(&self, width: u32, height: u32) -> Result<()> {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", metrics).await
    }

    /// Clicks on the first element of a CSS selector; an element that is not visible is an error.
    pub async fn click(&self, css: &str) -> Result<()> {
        let path = format!("{}/click", self.element(css).await?);
        self.post("click", &path, json!({})).await.map(drop)
    }

    /// Types into the first element of a CSS selector.
    pub async fn type_into(&self, css: &str, text: &str) -> Result<()> {
        let path = format!("{}/value", self.element(css).await?);
        self.post("type", &path, json!({ "text": text })).await.map(drop)
    }

    /// Returns the visible text of the first element of a CSS selector.
    pub async fn text(&self, css: &str) -> Result<String> {
        let path = format!("{}/text", self.element(css).await?);
        let text = self.ask("read a text", Method::GET, &path, None).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Presses a key and lets it go, as a person at a keyboard does.
    pub async fn press(&self, key: Key) -> Result<()> {
        let key = key.code();
        let strokes = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let keyboard = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": strokes }] });
        self.post("press a key", "/actions", keyboard).await.map(drop)
    }

    /// Shows the page, and each later one, in other circumstances.
    pub async fn emulate(&self, emulation: Emulation) -> Result<()> {
        let scheme =
            |value: &str| json!({ "features": [{ "name": "prefers-color-scheme", "value": value }] });
        match emulation {
            Emulation::Light => self.command("Emulation.setEmulatedMedia", scheme("light")).await,
            Emulation::Dark => self.command("Emulation.setEmulatedMedia", scheme("dark")).await,
            Emulation::Offline => self.network(true).await,
            Emulation::Online => self.network(false).await,
        }
    }

    async fn network(&self, is_offline: bool) -> Result<()> {
        self.command("Network.enable", json!({})).await?;
        let conditions =
            json!({ "offline": is_offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        self.command("Network.emulateNetworkConditions", conditions).await
    }

    /// Runs a script in each later page before the page's own scripts.
    pub async fn run_before_pages(&self, script: &str) -> Result<()> {
        self.command("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script })).await
    }

    /// Returns the time from the request for the page to its first painted content; `None` when none is painted yet.
    pub async fn first_paint(&self) -> Result<Option<Duration>> {
        let milliseconds = self.script(FIRST_PAINT).await?.as_f64();
        Ok(milliseconds.map(|milliseconds| Duration::from_secs_f64(milliseconds / 1e3)))
    }

    /// Returns the bytes of all answers that the page has received whole, with their heads.
    pub async fn received_bytes(&self) -> Result<u64> {
        Ok(self.script(BYTES).await?.as_f64().map_or(0, |bytes| bytes as u64))
    }

    /// Returns the bytes of the page's live objects, after a collection of garbage.
    pub async fn page_bytes(&self) -> Result<u64> {
        self.command("HeapProfiler.collectGarbage", json!({})).await?;
        Ok(self.script("return performance.memory.usedJSHeapSize;").await?.as_u64().unwrap_or_default())
    }

    /// Returns the path of the first element of a CSS selector below the session.
    async fn element(&self, css: &str) -> Result<String> {
        let action = "find an element";
        let wanted = json!({ "using": "css selector", "value": css });
        let found = self.post(action, "/element", wanted).await?;
        let id = found[ELEMENT].as_str().ok_or_else(|| failed(action, format!("no identity: {found}")))?;
        Ok(format!("/element/{id}"))
    }

    /// Runs a command of the browser's own protocol.
    async fn command(&self, name: &str, parameters: Json) -> Result<()> {
        let command = json!({ "cmd": name, "params": parameters });
        self.post("set the browser up", "/goog/cdp/execute", command).await.map(drop)
    }

    async fn post(&self, action: &'static str, path: &str, body: Json) -> Result<Json> {
        self.ask(action, Method::POST, path, Some(body)).await
    }

    /// Sends a request of the session; an error of the browser is an error.
    async fn ask(
        &self,
        action: &'static str,
        method: Method,
        path: &str,
        body: Option<Json>,
    ) -> Result<Json> {
        let unanswered = |error: reqwest::Error| failed(action, error.to_string());
        let mut request = self.client.request(method, format!("{}{path}", self.session));
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.map_err(unanswered)?;
        let is_done = answer.status().is_success();
        let text = answer.text().await.map_err(unanswered)?;
        let mut answer: Json =
            serde_json::from_str(&text).map_err(|error| failed(action, format!("{error}: {text}")))?;
        if is_done {
            return Ok(answer["value"].take());
        }
        let said = &answer["value"];
        let reason = |field: &str| said[field].as_str().unwrap_or("unknown").to_owned();
        Err(failed(action, format!("{}: {}", reason("error"), reason("message"))))
    }
}

impl Key {
    /// The key's character, by the standard.
    fn code(self) -> char {
        match self {
            Key::Tab => '\u{E004}',
            Key::Enter => '\u{E007}',
            Key::Escape => '\u{E00C}',
            Key::Left => '\u{E012}',
            Key::Up => '\u{E013}',
            Key::Right => '\u{E014}',
            Key::Down => '\u{E015}',
        }
    }
}

fn failed(action: &'static str, reason: String) -> DemoError {
    DemoError::Browser { action, reason }
}
