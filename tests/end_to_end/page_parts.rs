//! Parts of the live page in a real browser: the calendar and its reports, a reconciliation under way, busiest tables,
//! leases, charts, the trace of a key, and actions of an operator up to their rows in the table `operations`.

use std::collections::BTreeMap;

use anabranch_demo::browser::Key;
use anabranch_pipeline::config::reconcile::Mode;
use anabranch_pipeline::reconcile::{ReconciliationReport, StoreReport, Verdict, VisibleTables, seal};
use anabranch_pipeline::records::PastReconciliation;
use anabranch_pipeline::wall_clock;
use anabranch_tests::{Daemon, Installation, Plan, Search, browser, until};
use reqwest::Method;
use serde_json::{Value as Json, json};

use crate::STANDARD;
use crate::documents::{self, INDEX};
use crate::faults::{insert, until_derived};
use crate::page_in_browser::{OPERATORS_TOKEN, Page, installation, with_tokens};

/// The beginning of names that would load an image, and run, if they were taken for HTML.
const HTML: &str = "<img src=x onerror=planted=1>";
const DAY_MS: u64 = 86_400_000;
/// Bytes of the longest reason.
const LONG: usize = 64 * 1024;
/// A key that occurs nowhere by chance.
const USER: u64 = 770_000_000_321;

/// Expects that nothing of the planted names became an element or ran, and that the console is empty.
async fn expect_only_text(page: &Page) {
    assert_eq!(page.value("document.querySelectorAll('main img, main script').length").await, 0);
    assert_eq!(page.value("window.planted ?? null").await, Json::Null);
    assert_eq!(page.console().await, Vec::<String>::new());
}

/// The report of one store that read 1,234 source rows within 90 seconds.
fn report(number: u64, ended_at_ms: u64, store: StoreReport) -> ReconciliationReport {
    let store = StoreReport {
        tables: 10,
        rows_source: 1_234,
        rows_expected: 1_200,
        rows_derived: 1_201,
        seconds: 61.0,
        ..store
    };
    ReconciliationReport {
        id: format!("planted-{number}"),
        verdict: store.outcome(),
        begun_at_ms: ended_at_ms - 90_000,
        ended_at_ms,
        mode: Mode::Repair,
        stores: vec![store],
        tables: VisibleTables::default(),
        uncaptured: VisibleTables::default(),
        is_whole: true,
        caches: BTreeMap::new(),
        command: None,
        asked_by: None,
        gaps: Vec::new(),
    }
}

/// Four stores, each with another verdict.
fn stores() -> [StoreReport; 4] {
    let named = || StoreReport::new("birthday");
    let repaired = StoreReport { candidates: 9, repaired: 7, confirmed: 7, ..named() };
    let failed = StoreReport { candidates: 9, repaired: 5, confirmed: 2, left: 3, again: 2, ..named() };
    let long = format!("{HTML} {}", "x".repeat(LONG));
    [
        named(),
        StoreReport { verdicts: BTreeMap::from([(Verdict::Missing, 7)]), ..repaired },
        StoreReport { incomplete: vec![long], ..StoreReport::new(HTML) },
        StoreReport { verdicts: BTreeMap::from([(Verdict::Stale, 5)]), ..failed },
    ]
}

/// Plants a report of each day up to today; returns their days, the oldest first.
async fn plant_history(installation: &Installation<'_>, page: &Page) -> Vec<String> {
    let now = wall_clock::now_ms() / 1_000 * 1_000;
    let literal = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"));
    let mut before: Option<PastReconciliation> = None;
    let mut days = Vec::new();
    for (number, store) in (1..).zip(stores()) {
        let ended_at_ms = now - (4 - number) * DAY_MS;
        let report = report(number, ended_at_ms, store);
        let text = serde_json::to_string(&report).unwrap();
        let row = seal(before.as_ref(), (&report.id, ended_at_ms, report.verdict), text, None);
        let texts = [&row.id, row.verdict.name(), &row.report, &row.previous, &row.signature];
        let [id, verdict, report, previous, signature] = texts.map(literal);
        let planted = format!(
            "SET time_zone = '+00:00'; INSERT INTO anabranch.reconciliations \
             (number, id, ended_at, verdict, report, previous, signature) \
             VALUES ({number}, {id}, FROM_UNIXTIME({}), {verdict}, {report}, {previous}, {signature})",
            ended_at_ms / 1_000
        );
        installation.execute("target", planted).await;
        let day = page.value(&format!("new Date({ended_at_ms}).toISOString().slice(0, 10)")).await;
        days.push(day.as_str().unwrap().to_owned());
        before = Some(row);
    }
    days
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calendar_shows_the_worst_verdict_of_a_day_and_each_report_what_was_read_and_repaired() {
    let Some(browser) = browser().await else { return };
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let page = Page::open(browser, &installation).await;
    page.until("text('#history-said').includes('No reconciliation has ended yet')").await;
    page.use_operators_token().await;
    let days = plant_history(&installation, &page).await;
    page.until("document.querySelectorAll('#calendar button').length === 4").await;
    assert!(
        page.value("document.querySelectorAll('#calendar .days > *').length").await.as_u64() >= Some(365)
    );
    page.until("text('#history-said').startsWith('4 reconciliations; the last one ended ')").await;

    let figures = "[...document.querySelectorAll('#reports td.number')].map((cell) => cell.textContent)";
    let read = ["10", "1,234", "1,200", "1,201"];
    for (place, class, verdict, proved, found) in [
        (0, "good", "clean", "Proved equal: every row was read", ["0", "0", "0", "0", "0", "0"]),
        (1, "busy", "repaired", "Proved equal after repairs", ["9", "7", "7", "7", "0", "0"]),
        (2, "unsure", "incomplete", "Not proved: something was not read", ["0", "0", "0", "0", "0", "0"]),
        (3, "bad", "failed", "Wrong rows are left.", ["9", "5", "5", "2", "3", "2"]),
    ] {
        let day = &days[place];
        let button = format!("#calendar [data-day='{day}']");
        let shown = page.value(&format!("[one(\"{button}\").className, one(\"{button}\").ariaLabel]")).await;
        assert_eq!(shown, json!([format!("day {class}"), format!("{day}: {verdict}, unsigned")]));
        page.browser.click(&button).await.unwrap();
        page.until(&format!("text('#reports h3').includes('planted-{}')", place + 1)).await;
        let text = page.value("text('#reports article > p')").await;
        let text = text.as_str().unwrap();
        assert!(text.starts_with(proved) && text.contains("UTC, 2 min (repair)."), "{text}");
        let expected: Vec<&str> = read.into_iter().chain(found).chain(["0", "61 s"]).collect();
        assert_eq!(page.value(figures).await, json!(expected), "{verdict}");
    }

    // A year is one stop of the Tab key: arrows go to the next day that has a report.
    page.browser.press(Key::Left).await.unwrap();
    page.until(&format!("document.activeElement.dataset.day === '{}'", days[0])).await;

    // A store and a reason that are HTML, and long, stay text.
    page.browser.click(&format!("#calendar [data-day='{}']", days[2])).await.unwrap();
    page.until(&format!("text('#reports .reasons').length > {LONG}")).await;
    for part in ["#reports tbody th", "#reports .reasons"] {
        assert_eq!(page.value(&format!("one('{part}').textContent.startsWith('{HTML}')")).await, true);
    }
    expect_only_text(&page).await;
}

/// Shows three answers about the same reconciliation by the page's own modules, the last of a daemon that is held.
/// The query string makes a second instance of a module, so that the page itself measures nothing with it.
const UNDERWAY: &str = "
    const documents = [...arguments];
    const load = [import('/page/model.js'), import('/page/calendar.js'), import('/page/pace.js?of-a-test')];
    Promise.all(load).then(async ([{ readHistory }, { underway }, { notePace, paceOf }]) => {
        const { fetch } = window;
        const shown = [];
        for (const document of documents) {
            if (shown.length === 2) {
                const headers = { 'content-type': 'text/plain' };
                window.fetch = async () => new Response('anabranch_reconcile_held 1\\n', { headers });
            }
            const history = readHistory(document);
            await notePace(history);
            const made = underway(history, paceOf);
            shown.push(made.map((one) => `${one.querySelector('progress').value} ${one.textContent}`).join());
        }
        window.fetch = fetch;
        window.shown = shown;
    });
";

#[tokio::test(flavor = "multi_thread")]
async fn a_reconciliation_under_way_shows_its_progress_rate_time_left_and_that_it_waits() {
    let Some(browser) = browser().await else { return };
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_ready().await;
    let page = Page::open(browser, &installation).await;
    let begun_at_ms = 1_800_000_000_000_u64;
    let answer = |seconds: u64, share: f64, rows: u64| {
        let store = json!({
            "store": "birthday", "verdict": "clean", "rows_source": rows, "rows_derived": rows, "drifted": 3,
        });
        let one = json!({
            "id": "planted", "command": "anabranch reconcile --now", "begun_at_ms": begun_at_ms, "windows": 2,
            "share": share, "done": [], "current": store,
        });
        json!({
            "now_ms": begun_at_ms + seconds * 1_000, "is_signed": true, "reconciliations": [], "underway": [one],
        })
    };
    let answers = [answer(0, 0.25, 1_000), answer(10, 0.5, 2_000), answer(20, 0.5, 2_000)];
    page.browser.script_with(UNDERWAY, &answers).await.unwrap();
    page.until("window.shown").await;
    let shown = page.value("window.shown").await;
    let expected = [
        ["0.25 ", "25 % of birthday, 1,000 source rows read, 3 wrong so far", "Its rate is not known yet."],
        [
            "0.5 ",
            "50 % of birthday, 2,000",
            "200 rows a second on both sides, about 20 s left of this store.",
        ],
        ["0.5 ", "worked on in 2 windows", "a source, a replica or a lane is too busy (backpressure)"],
    ];
    for (text, parts) in shown.as_array().unwrap().iter().zip(expected) {
        let text = text.as_str().unwrap();
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} are not in {text}");
    }
    assert_eq!(shown.as_array().map(Vec::len), Some(expected.len()), "{shown}");
    assert_eq!(page.console().await, Vec::<String>::new());
}

/// An installation whose source tables have names of HTML.
async fn installation_of_html() -> Installation<'static> {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    let listed = "SELECT table_schema FROM information_schema.tables WHERE table_name = 'user_000'";
    for source in installation.configuration.sources.clone() {
        let databases: Vec<String> =
            installation.admin(&source).await.rows("list databases", listed).await.unwrap();
        for database in databases {
            let renamed = format!("RENAME TABLE {database}.user_000 TO {database}.`{HTML}000`");
            installation.execute(&source, renamed).await;
        }
    }
    let text = with_tokens(&installation);
    let named = text.replace(".user_{table:03}", &format!(".{HTML}{{table:03}}"));
    assert_ne!(text, named, "the pattern is replaced");
    installation.write_configuration_text(&named);
    installation.command(&["setup"]).await.expect_success();
    installation
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_with_names_of_html_stay_text_and_leases_charts_and_a_trace_are_shown() {
    let Some(browser) = browser().await else { return };
    let installation = installation_of_html().await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let page = Page::open(browser, &installation).await;
    assert_eq!(page.value("one('#busiest-section').hidden && one('#trace-section').hidden").await, true);
    page.use_operators_token().await;
    for user in USER..USER + 20 {
        insert(&installation, "source-a", &format!("user_00.`{HTML}000`"), user).await;
    }
    until_derived(&installation, USER).await;
    let table = format!("user_00.{HTML}000");
    page.until(&format!("text('#busiest tbody th') === '{table}'")).await;
    assert_eq!(page.value("one('#busiest tbody td').textContent").await, "source-a");
    assert_eq!(page.value("one('#busiest rect').getAttribute('width')").await, "120.0");
    let holder = format!("{} (this process)", daemon.pid());
    let lease = "[...document.querySelectorAll('#leases tbody tr')]
        .find((row) => row.firstElementChild.textContent === 'reader/source-a')";
    page.until(&format!("{lease}?.innerText.includes('{holder}')")).await;

    // A sparkline has a line, and opens the chart of its lane.
    page.until("/^M.*[Lh]/.test(one('#lanes .spark path').getAttribute('d') ?? '')").await;
    page.browser.click("#lanes .spark").await.unwrap();
    page.until("document.querySelectorAll('#dialog figure').length === 2").await;
    page.until("text('#dialog').includes('Rows applied: now') && one('#dialog path.values') !== null").await;
    page.browser.press(Key::Escape).await.unwrap();
    page.until("!one('#dialog').open").await;
    follow_a_key(&page, &table).await;
    expect_only_text(&page).await;
}

/// Follows a user, then a user that no source has, and closes the answer, which forgets the key.
async fn follow_a_key(page: &Page, table: &str) {
    page.browser.type_into("#trace-key", &USER.to_string()).await.unwrap();
    page.browser.click("#trace-form button").await.unwrap();
    page.until("text('#trace-answer .found').startsWith('Equal: ')").await;
    assert_eq!(page.value("one('#trace-answer article').className").await, "report traced good");
    let titles = "[...document.querySelectorAll('#trace-answer h3')].map((title) => title.textContent)";
    let expected = ["Source rows that claim it now", "Last change in the log", "Stores", "Lanes"];
    assert_eq!(page.value(titles).await, json!(expected));
    let text = page.value("text('#trace-answer')").await;
    let text = text.as_str().unwrap();
    for wanted in [table, "insert of source-a", "birthday_0101", "birthday/target/source-a/0"] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
    page.browser.click("#trace-answer .buttons button").await.unwrap();
    page.until("one('#trace-answer').firstChild === null && one('#trace-key').value === ''").await;
    assert_eq!(page.value(&format!("location.href.includes('{USER}')")).await, false);

    page.browser.type_into("#trace-key", "123456").await.unwrap();
    page.browser.click("#trace-form button").await.unwrap();
    page.until("text('#trace-answer .found').startsWith('Nothing has this key: ')").await;
    page.until("text('#trace-answer').includes('No source has a row of this key.')").await;
}

/// The phases and operators of a command's rows in the table `operations`.
async fn recorded(daemon: &Daemon, command: &str) -> Vec<(String, String)> {
    let (status, page) = daemon.ask("GET", "/v1/operations", Some(OPERATORS_TOKEN), "").await;
    assert_eq!(status, 200, "{page}");
    let rows = page["operations"].as_array().unwrap().iter().rev();
    let text = |row: &Json, field: &str| row[field].as_str().unwrap().to_owned();
    rows.filter(|row| row["command"] == command).map(|row| (text(row, "phase"), text(row, "who"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_restarts_a_reader_and_reconciles_after_a_dry_run_and_both_are_recorded() {
    const RESTART: &str = "anabranch restart reader/source-a";
    const RECONCILE: &str = "anabranch reconcile --now --store birthday --mode report";
    let Some(browser) = browser().await else { return };
    let installation = installation().await;
    let daemon = installation.run();
    daemon.until_loaded(&["source-a", "source-b"]).await;
    let page = Page::open(browser, &installation).await;
    page.use_operators_token().await;

    page.browser.click("#sources [data-action=restart][data-thing='reader/source-a']").await.unwrap();
    page.until(&format!("one('[data-step=carry-out]') !== null && text('#dialog').includes('{RESTART}')"))
        .await;
    assert!(recorded(&daemon, RESTART).await.is_empty(), "a dry run changes nothing");
    assert!(!daemon.log().contains("a restart was asked for"), "a dry run changes nothing");
    page.carry_out().await;
    until("the daemon hears of the restart", async || daemon.log().contains("a restart was asked for")).await;
    let row = |phase: &str| (phase.to_owned(), "ann".to_owned());
    assert_eq!(recorded(&daemon, RESTART).await, [row("begun"), row("done")]);
    page.until(&format!("text('#operations tbody tr').includes('{RESTART}')")).await;

    page.browser.click("#reconcile-now").await.unwrap();
    page.browser.click("#dialog fieldset input").await.unwrap();
    page.browser.script("document.getElementById('mode').value = 'report';").await.unwrap();
    page.browser.click("[data-step=dry-run]").await.unwrap();
    page.until(&format!("one('[data-step=carry-out]') !== null && text('#dialog').includes('{RECONCILE}')"))
        .await;
    let would = "the reconciliation compares birthday, and reports what differs";
    page.until(&format!("text('#dialog .lines').includes('{would}')")).await;
    assert!(recorded(&daemon, RECONCILE).await.is_empty(), "a dry run changes nothing");
    page.carry_out().await;
    until("the reconciliation is recorded", async || {
        recorded(&daemon, RECONCILE).await == [row("begun"), row("done")]
    })
    .await;
    page.until("text('#reports').includes('Proved equal: every row was read')").await;
    let done = format!("text('#operations tbody tr').includes('{RECONCILE}')");
    page.until(&format!("{done} && one('#operations tbody tr .badge').className.includes('good')")).await;
    assert_eq!(page.console().await, Vec::<String>::new());
}

/// Plants a dead letter of the one document that there is, as a lane writes it.
pub async fn park(installation: &Installation<'_>) {
    let search = Search::of(installation.stack());
    let (id, document) = search.documents(INDEX).await.into_iter().next().unwrap();
    let letters = search.ask(Method::GET, "*-dead-letters/_settings", Json::Null).await;
    let letters = letters.as_object().unwrap().keys().next().unwrap().clone();
    let (index, lsn) = (format!("{INDEX}-v1"), document["lsn"].as_u64().unwrap());
    let letter = json!({
        "projection": "documents", "source": "source-a", "lane": document["lane"], "index": index, "document": id,
        "lsn": lsn, "reason": "mapper_parsing_exception", "parked_at": 1,
    });
    let version = format!("version={lsn}&version_type=external_gte&refresh=true");
    search.ask(Method::PUT, &format!("{letters}/_doc/{index}:{id}?{version}"), letter).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_retries_parked_documents_after_a_dry_run_and_it_is_recorded() {
    const INDEX_ROW: &str =
        "[...document.querySelectorAll('#stores tr')].find((row) => row.children[1].textContent === 'index')";
    let parked = format!("{INDEX_ROW}?.children[11].textContent");
    let Some(browser) = browser().await else { return };
    let mut installation = documents::with_documents().await;
    let text = std::fs::read_to_string(installation.configuration_file()).unwrap();
    let operators = format!("[http]\noperators = [{{ name = \"ann\", token = \"{OPERATORS_TOKEN}\" }}]\n");
    installation.write_configuration_text(&text.replace("[http]\n", &operators));
    let daemon = installation.run();
    documents::add(&installation, 640, 641).await;
    documents::equal(&installation, "one device").await;
    park(&installation).await;
    let page = Page::open_until(browser, &installation, &format!("{parked} === '1'")).await;
    // Rows applied of its lanes, and its tombstones.
    page.until(&format!("/^[0-9.,]+ .s$/.test({INDEX_ROW}?.children[4].textContent)")).await;
    page.until(&format!("/^[0-9]+$/.test({INDEX_ROW}?.children[10].textContent)")).await;
    page.use_operators_token().await;

    page.browser.click("#stores [data-action=retry-dead-letters]").await.unwrap();
    page.until("one('[data-step=carry-out]') !== null").await;
    let command = page.value("one('#dialog pre').textContent").await;
    let command = command.as_str().unwrap();
    assert!(command.starts_with("anabranch dead-letters retry"), "{command}");
    assert!(recorded(&daemon, command).await.is_empty(), "a dry run changes nothing");
    assert_eq!(page.value(&parked).await, "1");
    page.carry_out().await;
    let row = |phase: &str| (phase.to_owned(), "ann".to_owned());
    until("the retry is recorded", async || recorded(&daemon, command).await == [row("begun"), row("done")])
        .await;
    assert_eq!(page.console().await, Vec::<String>::new());
}
