//! A browser for tests of the live page.

use anabranch_demo::browser::Browser;
use anabranch_stack::Layout;

/// Starts a browser, which is installed at the first call; `None` on a machine that cannot have one, with the reason on
/// stderr.
///
/// # Panics
/// Panics when an installed browser does not start.
pub async fn browser() -> Option<Browser> {
    let layout = Layout::find().expect("the tests run in a checkout");
    Browser::start(&layout).await.expect("the browser starts")
}
