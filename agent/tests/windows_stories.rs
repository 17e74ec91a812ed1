//! The stories of `recordings/windows-*`: writes their `.etl` files, and holds the committed ones against that.
//!
//! `BLESS=1 cargo test -p sandglass --test windows_stories` rewrites them; what they replay to is golden
//! (`tests/golden.rs`). All of it is made up: no Windows node was at hand.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "windows_stories/node.rs"]
mod node;
#[path = "windows_stories/stories.rs"]
mod stories;

use std::fs;
use std::path::Path;

#[test]
fn committed_files_are_what_the_stories_write() {
    for (name, write) in stories::ALL {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings").join(name);
        let path = folder.join("events.etl");
        let bytes = write();
        assert!(bytes.len() < 64 * 1024, "{name}: {} bytes", bytes.len());
        assert_eq!(bytes, write(), "{name}: two writings differ");
        if std::env::var_os("BLESS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &bytes).unwrap();
            continue;
        }
        let committed = fs::read(&path).unwrap_or_default();
        assert!(
            committed == bytes,
            "{}: differs from its story; BLESS=1 rewrites it",
            path.display()
        );
    }
}
