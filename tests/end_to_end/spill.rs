//! Rows that a stream withholds beyond its memory are in the configured folder, unseen, and are counted.

use std::path::{Path, PathBuf};

use anabranch_tests::{Daemon, Installation, Plan, until};

use crate::STANDARD;

const SPILLED: &str = "anabranch_source_spilled_bytes";

#[tokio::test(flavor = "multi_thread")]
async fn an_undecided_branch_spills_into_the_configured_folder_and_is_counted_until_it_is_decided() {
    let mut installation = Installation::prepare(STANDARD.turn().await, &Plan::small()).await;
    let folder = tempfile::tempdir_in(installation.stack().folder()).unwrap();
    installation.configuration.limits.push(format!("spill_dir = {:?}", folder.path()));
    installation.write_configuration();
    installation.command(&["setup"]).await.expect_success();
    let daemon = installation.run();
    daemon.until_ready().await;
    assert!(daemon.metrics().await.contains(&format!("{SPILLED}{{source=\"source-b\"}} 0")));

    // Three thousand rows of 10 KB in a captured column: more than a stream keeps in memory.
    let branch = "ALTER TABLE user_00.user_000 MODIFY birthday MEDIUMTEXT; XA START 'large';
        INSERT INTO user_00.user_000 (user_id, user_name, birthday)
          SELECT seq, CONCAT('name-', seq), REPEAT('x', 10000) FROM user_00.seq_1_to_3000;
        XA END 'large'; XA PREPARE 'large'";
    installation.execute("source-a", branch).await;
    let spilled = async || daemon.metric(SPILLED, &["source=\"source-a\""]).await;
    until("the branch is spilled", async || spilled().await > 0.0).await;
    let files = files_of(&daemon);
    let in_folder = files.iter().filter(|file| file.starts_with(folder.path()));
    assert_eq!(in_folder.count(), 1, "{files:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nobody sees it");
    assert_eq!(daemon.metric(SPILLED, &["source=\"source-b\""]).await, 0.0);

    installation.execute("source-a", "XA ROLLBACK 'large'").await;
    until("nothing is spilled any more", async || spilled().await == 0.0).await;
    assert!(files_of(&daemon).iter().all(|file| !file.starts_with(folder.path())));
}

/// Open files of the daemon, as the kernel names them.
fn files_of(daemon: &Daemon) -> Vec<PathBuf> {
    let folder = format!("/proc/{}/fd", daemon.pid());
    let open = std::fs::read_dir(Path::new(&folder)).unwrap();
    open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok()).collect()
}
