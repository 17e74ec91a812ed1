//! The page's files, as they stand in `ui/`, in the binary.
//!
//! Browsers revalidate each file by its tag, so that the page of an updated agent appears at once. Does not: read the disk.

use std::hash::{DefaultHasher, Hasher};

/// One file.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Path it is served under.
    pub path: &'static str,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// Content.
    pub bytes: &'static [u8],
}

impl Asset {
    /// Strong validator: changes with the content.
    pub fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        hasher.write(self.bytes);
        format!("\"{:016x}\"", hasher.finish())
    }
}

/// The file at `path`.
pub fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}

macro_rules! assets {
    ($($path:literal $file:literal $content_type:expr;)+) => {
        /// Every file.
        pub const ASSETS: &[Asset] = &[$(Asset {
            path: $path,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../../ui/", $file)),
        }),+];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

assets! {
    "/" "index.html" HTML;
    "/ui/style.css" "style.css" CSS;
    "/ui/icon.svg" "icon.svg" SVG;
    "/ui/theme.js" "theme.js" SCRIPT;
    "/ui/app.js" "app.js" SCRIPT;
    "/ui/agent.js" "agent.js" SCRIPT;
    "/ui/api.js" "api.js" SCRIPT;
    "/ui/causes.js" "causes.js" SCRIPT;
    "/ui/chart.js" "chart.js" SCRIPT;
    "/ui/dom.js" "dom.js" SCRIPT;
    "/ui/format.js" "format.js" SCRIPT;
    "/ui/keys.js" "keys.js" SCRIPT;
    "/ui/list.js" "list.js" SCRIPT;
    "/ui/network.js" "network.js" SCRIPT;
    "/ui/phases.js" "phases.js" SCRIPT;
    "/ui/reasons.js" "reasons.js" SCRIPT;
    "/ui/runbooks.js" "runbooks.js" SCRIPT;
    "/ui/trace.js" "trace.js" SCRIPT;
    "/ui/waterfall.js" "waterfall.js" SCRIPT;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_asks_for_nothing_outside_and_never_parses_text_as_markup() {
        for asset in ASSETS {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            // The SVG namespace is a name, not an address that is fetched.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for banned in [
                "http://",
                "https://",
                "//cdn",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
                "document.write",
            ] {
                assert!(!text.contains(banned), "{} contains {banned}", asset.path);
            }
        }
    }

    #[test]
    fn every_file_that_is_named_exists() {
        for asset in ASSETS {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            for (_, rest) in text
                .match_indices("from \"./")
                .map(|(at, word)| (at, &text[at + word.len()..]))
            {
                let name = rest.split('"').next().unwrap();
                assert!(find(&format!("/ui/{name}")).is_some(), "{} imports {name}", asset.path);
            }
            for (at, _) in text.match_indices("=\"/ui/") {
                let name = text[at + 2..].split('"').next().unwrap();
                assert!(find(name).is_some(), "{} names {name}", asset.path);
            }
        }
    }
}
