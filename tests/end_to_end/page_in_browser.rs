//! The live page in a real browser: what a person sees, reads and does there. A machine that can have no browser prints
//! `skipped:`.

use anabranch_demo::browser::{Browser, Emulation, Key};
use anabranch_tests::{Installation, Plan, WAIT_MAX, browser, until};
use serde_json::{Value as Json, json};

use crate::STANDARD;

const TOKEN: &str = "token-of-an-application";
pub const OPERATORS_TOKEN: &str = "token-of-ann-who-is-on-call";
const ALL_CURRENT: &str = "sentence().startsWith('All is current: 2 sources, 4 lanes')";
const LANE: &str = "birthday/target/source-a/0";
/// A reason that would run, or break the page, if it were taken for HTML.
const REASON: &str =
    "<script>window.planted = 1</script><img src=x onerror=\"planted = 2\"> \"quoted\" & 'so'";
/// Functions for the expressions of these tests.
const FUNCTIONS: &str = r"
    const one = (css) => document.querySelector(css);
    const sentence = () => one('#sentence').textContent;
    const text = (css) => one(css)?.innerText ?? '';
    const row = (name) => [...document.querySelectorAll('#lanes tbody tr')]
        .find((row) => row.firstElementChild.textContent === name);
";

/// An installation with the tokens of an application and of an operator.
pub async fn installation() -> Installation<'static> {
    let mut installation = Installation::set_up(STANDARD.turn().await, &Plan::small()).await;
    let text = with_tokens(&installation);
    installation.write_configuration_text(&text);
    installation
}

/// The text of the configuration file with both tokens.
pub fn with_tokens(installation: &Installation<'_>) -> String {
    installation.configuration_text_with_http(&format!(
        "tokens = [\"{TOKEN}\"]\noperators = [{{ name = \"ann\", token = \"{OPERATORS_TOKEN}\" }}]"
    ))
}

/// The page in a browser.
pub struct Page {
    pub browser: Browser,
}

impl Page {
    /// Opens the page, and waits until all is current.
    pub async fn open(browser: Browser, installation: &Installation<'_>) -> Self {
        Self::open_until(browser, installation, ALL_CURRENT).await
    }

    /// Opens the page, and waits until an expression is true.
    pub async fn open_until(browser: Browser, installation: &Installation<'_>, expression: &str) -> Self {
        let address = format!("http://127.0.0.1:{}/", installation.configuration.http_port);
        browser.open(&address).await.unwrap();
        let page = Self { browser };
        page.until(expression).await;
        page
    }

    /// Waits until an expression is true.
    pub async fn until(&self, expression: &str) {
        let function = format!("(() => {{ {FUNCTIONS} return {expression}; }})()");
        if self.browser.until(&function, WAIT_MAX).await.unwrap().is_none() {
            let text = self.value("document.body.innerText").await;
            panic!("`{expression}` is not true of the page: {}", text.as_str().unwrap());
        }
    }

    /// The present value of an expression.
    pub async fn value(&self, expression: &str) -> Json {
        self.browser.script(&format!("{FUNCTIONS} return {expression};")).await.unwrap()
    }

    /// Gives the page a token, as a person does.
    async fn use_token(&self, token: &str) {
        if self.value("!one('.token').open").await == true {
            self.browser.click(".token summary").await.unwrap();
        }
        if !token.is_empty() {
            self.browser.type_into("#token", token).await.unwrap();
        }
        self.browser.click("#token-form button").await.unwrap();
    }

    /// Becomes a page of the operator.
    pub async fn use_operators_token(&self) {
        self.use_token(OPERATORS_TOKEN).await;
        self.until("document.body.classList.contains('operator')").await;
        self.until("one('[data-action=pause]') !== null").await;
    }

    /// Carries out what the open dialog shows, and closes it.
    pub async fn carry_out(&self) {
        self.browser.click("[data-step=carry-out]").await.unwrap();
        self.until("text('#dialog').includes('carried out')").await;
        self.browser.press(Key::Escape).await.unwrap();
        self.until("!one('#dialog').open").await;
    }

    pub async fn console(&self) -> Vec<String> {
        self.browser.console().await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_shows_what_is_wrong_and_what_is_old_and_its_console_stays_empty() {
    let Some(browser) = browser().await else { return };
    let installation = installation().await;
    let mut daemon = installation.run();
    daemon.until_ready().await;
    let page = Page::open(browser, &installation).await;
    assert_eq!(page.value(&format!("row('{LANE}').innerText.includes('current')")).await, true);
    page.until("text('#link') === 'live'").await;

    // Without a token the page names the code and the runbook's text, and no host.
    installation.server("source-a").kill().unwrap();
    page.until("sentence().includes('source-a') && text('#action').includes('source-unreachable')").await;
    page.until("text('#runbook-title').includes('source-unreachable')").await;
    assert_eq!(page.value("document.body.innerText.includes('Connection refused')").await, false);
    assert_eq!(page.value("one('#verdict').className.includes('good')").await, false);
    page.use_token(TOKEN).await;
    page.until("text('#action').includes('Connection refused')").await;
    assert_eq!(page.value("document.body.classList.contains('operator')").await, false);
    page.use_token("").await;
    page.until("!document.body.innerText.includes('Connection refused')").await;
    installation.server("source-a").restart().unwrap();
    page.until(ALL_CURRENT).await;
    // The browser itself reports that an application's token is refused for the operations.
    let is_refusal = |message: &String| message.contains("/v1/operations") && message.contains("403");
    let console: Vec<_> = page.console().await.into_iter().filter(|message| !is_refusal(message)).collect();
    assert_eq!(console, Vec::<String>::new());

    // A page that hears nothing says that what it shows is old, and connects again by itself.
    let is_old = "!one('#stale').hidden && text('#link').startsWith('old data')";
    let is_live = format!("one('#stale').hidden && text('#link') === 'live' && {ALL_CURRENT}");
    daemon.pause();
    page.until(is_old).await;
    daemon.resume();
    page.until(&is_live).await;
    page.browser.emulate(Emulation::Offline).await.unwrap();
    page.use_token("").await;
    page.until(is_old).await;
    page.browser.emulate(Emulation::Online).await.unwrap();
    page.until(&is_live).await;

    // A handler in a text does not run, and the console, which was empty, shows that it was refused.
    page.console().await;
    let planted = "document.body.insertAdjacentHTML('beforeend', \
        '<img src=\"data:,\" onerror=\"window.planted = 1\">');";
    page.browser.script(planted).await.unwrap();
    until("the browser reports the text that it has not run", async || {
        page.console().await.iter().any(|message| message.contains("Content Security Policy"))
    })
    .await;
    assert_eq!(page.value("window.planted ?? null").await, Json::Null);
    page.use_token("a-token-of-nobody").await;
    page.until("text('#token-said').startsWith('Refused')").await;
    daemon.kill();
    page.until("!one('#stale').hidden").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_pauses_and_resumes_lanes_after_a_dry_run_and_any_text_stays_text() {
    let Some(browser) = browser().await else { return };
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let page = Page::open(browser, &installation).await;
    assert_eq!(page.value("document.querySelectorAll('[data-action]:not([hidden])').length").await, 0);
    page.use_operators_token().await;

    page.browser.click(&format!("[data-action=pause][data-thing='{LANE}']")).await.unwrap();
    page.browser.type_into("#reason", REASON).await.unwrap();
    page.browser.click("[data-step=dry-run]").await.unwrap();
    page.until("one('[data-step=carry-out]') !== null").await;
    let shown = page.value("text('#dialog')").await;
    let shown = shown.as_str().unwrap();
    for wanted in ["anabranch pause", "birthday", "source-a", "window.planted"] {
        assert!(shown.contains(wanted), "{wanted} is not in {shown}");
    }
    let lanes = installation.command(&["status", "--json"]).await.json();
    assert!(!lanes["lanes"].to_string().contains("\"paused\""), "a dry run changes nothing: {lanes}");
    page.carry_out().await;
    page.until(&format!("row('{LANE}').innerText.includes('paused')")).await;
    page.until("sentence().includes('2 lanes paused')").await;

    // The reason is shown letter by letter; no element of it exists, and nothing of it ran.
    let expression = format!("row('{LANE}').innerText.includes({})", json!(REASON));
    page.until(&expression).await;
    assert_eq!(page.value("document.querySelectorAll('main img, main script').length").await, 0);
    assert_eq!(page.value("window.planted ?? null").await, Json::Null);
    page.until("text('#operations').includes('anabranch pause') && text('#operations').includes('ann')")
        .await;

    page.browser.click(&format!("[data-action=resume][data-thing='{LANE}']")).await.unwrap();
    page.until("one('[data-step=carry-out]') !== null").await;
    let shown = page.value("text('#dialog')").await;
    assert!(shown.as_str().unwrap().contains("anabranch resume"), "{shown}");
    page.carry_out().await;
    page.until(ALL_CURRENT).await;
    page.until("text('#operations').includes('anabranch resume')").await;
    assert_eq!(page.console().await, Vec::<String>::new());
}

/// Lanes of each source: those of both are more than a table shows.
const MANY_LANES: u32 = 21;
const MANY_CURRENT: &str = "sentence().startsWith('All is current: 2 sources, 42 lanes')";
/// Functions for the cells of the heat map.
const CELLS: &str = r"
    const cells = [...document.querySelectorAll('#heat [role=option]')];
    const cell = (name) => cells.find((one) => one.dataset.key === `lane ${name}`);
    const label = (one) => one.getAttribute('aria-label');
    const chosen = cells.filter((one) => one.ariaSelected === 'true');
";

#[tokio::test(flavor = "multi_thread")]
async fn lanes_that_no_table_shows_are_cells_of_a_heat_map_that_keys_move_through() {
    let Some(browser) = browser().await else { return };
    let plan = Plan { lanes: MANY_LANES, ..Plan::small() };
    let installation = Installation::set_up(STANDARD.turn().await, &plan).await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let page = Page::open_until(browser, &installation, MANY_CURRENT).await;
    let of_cells = |expression: &str| format!("(() => {{ {CELLS} return {expression}; }})()");
    page.until(&of_cells("!one('#heat-part').hidden && cells.length === 42")).await;
    // A row is a store, and the lanes of each source stand side by side in it.
    let rows = "[...document.querySelectorAll('#heat [role=group]')].map((row) => label(row))";
    assert_eq!(page.value(&of_cells(rows)).await, json!(["birthday on target"]));
    let sources = "[...document.querySelectorAll('#heat .source')]
        .map((source) => source.querySelectorAll('[role=option]').length)";
    assert_eq!(page.value(&of_cells(sources)).await, json!([MANY_LANES, MANY_LANES]));
    let label = format!("label(cell('{LANE}'))");
    let is_current = format!("{label}.startsWith('{LANE}: current, ') && {label}.endsWith(' behind')");
    page.until(&of_cells(&is_current)).await;
    page.until("text('#heat .key').includes('in order: 42 lanes')").await;
    let worst = "document.querySelectorAll('#lanes tbody tr').length";
    assert_eq!(page.value(worst).await, 20, "the table keeps the worst lanes");

    // One cell alone is chosen, and the table of the chosen lane follows it.
    page.browser.click(&format!("#heat [data-key='lane {LANE}']")).await.unwrap();
    page.until(&of_cells(&format!("chosen.length === 1 && chosen[0] === cell('{LANE}')"))).await;
    page.until(&format!("text('#chosen').includes('{LANE}')")).await;
    let at = page.value(&of_cells("cells.indexOf(chosen[0])")).await;
    let at = at.as_u64().unwrap();
    for (key, moved_to) in [(Key::Right, at + 1), (Key::Left, at)] {
        page.browser.press(key).await.unwrap();
        let is_there = format!("chosen.length === 1 && chosen[0] === cells[{moved_to}]");
        page.until(&of_cells(&format!("{is_there} && document.activeElement === chosen[0]"))).await;
        page.until(&of_cells("text('#chosen').includes(chosen[0].dataset.key.slice('lane '.length))")).await;
    }

    // A state has a letter beside its colour, and the legend counts the lanes that have it.
    let pause = ["pause", "--projection", "birthday", "--source", "source-a"];
    installation.command(&pause).await.expect_success();
    page.until("text('#heat .key').includes('paused: 21 lanes')").await;
    let is_paused = format!("cell('{LANE}').textContent === 'p' && {label}.startsWith('{LANE}: paused, ')");
    page.until(&of_cells(&is_paused)).await;
    assert_eq!(page.console().await, Vec::<String>::new());
}

/// The controls that a person can see, each by what does not change from second to second.
const CONTROLS: &str = "
    const name = (control) => [control.tagName, control.id, control.dataset.action, control.dataset.thing,
        control.getAttribute('href'), control.closest('tr')?.firstElementChild.textContent].join(' ');
    const controls = () => [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]
        .filter((control) => control.tabIndex >= 0 && control.checkVisibility({ visibilityProperty: true }));
";
/// Most keystrokes from one end of the page to the other.
const STROKES_MAX: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_used_by_keyboard_on_a_narrow_screen_and_in_the_dark_scheme() {
    let Some(browser) = browser().await else { return };
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let page = Page::open(browser, &installation).await;
    page.use_operators_token().await;
    check_keyboard(&page).await;

    for width in [360, 768, 1280] {
        page.browser.resize(width, 740).await.unwrap();
        page.until(&format!("innerWidth === {width}")).await;
        let widths = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]";
        let widths = page.value(widths).await;
        assert!(widths[0].as_u64() <= widths[1].as_u64(), "the page scrolls sideways at {width}: {widths}");
    }

    let mut grounds = Vec::new();
    for scheme in [Emulation::Light, Emulation::Dark] {
        page.browser.emulate(scheme).await.unwrap();
        // The ground of the sentence changes for some moments.
        let contrasts = "['#sentence', '.legend', '#lanes tbody td'].map((css) => contrast(one(css)))";
        page.until(&format!("(() => {{ {CONTRAST} return {contrasts}.every((one) => one >= 4.5); }})()"))
            .await;
        grounds.push(page.value("getComputedStyle(document.body).backgroundColor").await);
    }
    assert_ne!(grounds[0], grounds[1], "the dark scheme has another ground");
    assert_eq!(page.console().await, Vec::<String>::new());
}

/// The contrast of an element's text to the ground behind it, as accessibility guidelines count it.
const CONTRAST: &str = r"
    const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
    const light = (colour) => {
        const [red, green, blue] = parts(colour).map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const ground = (element) => {
        const colour = getComputedStyle(element).backgroundColor;
        return parts(colour)[3] === 0 ? ground(element.parentElement) : colour;
    };
    const contrast = (element) => {
        const both = [light(getComputedStyle(element).color), light(ground(element))].sort((a, b) => a - b);
        return (both[1] + 0.05) / (both[0] + 0.05);
    };
";

/// Expects the tabulator to reach each control with a visible focus, from the link to the state to the last one.
async fn check_keyboard(page: &Page) {
    let begin = format!(
        "{CONTROLS} const [first] = controls(); first.focus();
         window.reached = [name(first)]; window.unseen = []; window.present = controls().map(name);
         addEventListener('focusin', ({{ target }}) => {{
             reached.push(name(target));
             if (getComputedStyle(target).outlineStyle === 'none') unseen.push(name(target));
         }});
         return [first.className, controls().length];"
    );
    let controls = page.browser.script(&begin).await.unwrap();
    assert_eq!(controls[0], "skip", "the first control leads to the state");
    let last = format!("{CONTROLS} return document.activeElement === controls().at(-1);");
    let mut strokes = 0;
    loop {
        page.browser.press(Key::Tab).await.unwrap();
        strokes += 1;
        if page.browser.script(&last).await.unwrap() == true {
            break;
        }
        assert!(strokes < STROKES_MAX, "the last of {controls} controls is not reached");
    }
    assert!(strokes > 15, "only {strokes} controls");
    // A list that grows becomes a control that scrolls, perhaps after the key has passed its place.
    let missed = format!(
        "{CONTROLS} return controls().map(name).filter((one) => present.includes(one) && !reached.includes(one));"
    );
    assert_eq!(page.browser.script(&missed).await.unwrap(), json!([]), "controls that no key reaches");
    assert_eq!(page.value("unseen").await, json!([]), "controls without a visible focus");

    // A dialog opens by a key, keeps the focus, and gives it back.
    page.browser.script("document.getElementById('reconcile-now').focus();").await.unwrap();
    page.browser.press(Key::Enter).await.unwrap();
    page.until("one('#dialog').open && one('#dialog').contains(document.activeElement)").await;
    page.browser.press(Key::Escape).await.unwrap();
    page.until("!one('#dialog').open && document.activeElement.id === 'reconcile-now'").await;
}

/// A day and an hour, so that an age that is counted with this clock has other units than the true one.
const CLOCK_AHEAD: &str = "
    const Real = Date;
    const ahead = 25 * 3600 * 1000;
    globalThis.Date = class extends Real {
        constructor(...given) { super(...(given.length === 0 ? [Real.now() + ahead] : given)); }
        static now() { return Real.now() + ahead; }
    };
    globalThis.trueTime = () => Real.now();
";

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_whose_clock_is_a_day_off_shows_true_ages() {
    let Some(browser) = browser().await else { return };
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    daemon.until_ready().await;
    installation.command(&["reconcile", "--now"]).await.expect_success();
    browser.run_before_pages(CLOCK_AHEAD).await.unwrap();
    let page = Page::open(browser, &installation).await;
    assert_eq!(page.value("Date.now() - trueTime() > 24 * 3600 * 1000").await, true, "the clock is ahead");

    page.until("/ended \\d+(\\.\\d+)? (s|min) ago/.test(text('#history-said'))").await;
    page.use_operators_token().await;
    page.browser.click("[data-action=refresh]").await.unwrap();
    page.until("one('[data-step=carry-out]') !== null").await;
    page.carry_out().await;
    page.until("one('#operations tbody tr') !== null").await;
    // Of today, the page writes the time alone; of another day, the day too.
    let days = "[...document.querySelectorAll('#operations tbody th, #events time')]
        .map((time) => time.textContent).filter((time) => time.includes('-'))";
    let (days, now) = (page.value(days).await, page.value("new Date(trueTime()).toISOString()").await);
    let is_after_midnight = now.as_str().unwrap().contains("T00:0");
    assert!(days == json!([]) || is_after_midnight, "{days} at {now}");
    let ages = "['#history-said', '#sources', '#lanes', '#tasks', '#operations', '#reports']
        .map((css) => text(css).match(/\\b(2[456] h|\\d+ days)\\b/)).filter((age) => age)";
    assert_eq!(page.value(ages).await, json!([]), "an age is counted with the browser's clock");
}
