//! Parses what a plugin read (its network configuration) and wrote (a result or an error).
//!
//! Used by `decode`. Network configurations hold tokens and passwords: only four known fields of them leave this module,
//! and secrets that an error quotes are masked. Bytes that are not one whole JSON object give nothing, and are
//! no error: they come from pipes that others may have emptied or filled again.
//! Does not: judge a result, or keep strings of any length.

use sandglass_model::ProcessKey;
use sandglass_model::cni::{CniError, NetConf};
use sandglass_model::event::PluginIo;
use sandglass_model::masking;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The parts that are kept; `None` when there are none. Either text may be missing, cut at a page (4 KiB), or something else
/// altogether: a plugin may hold any pipe as its standard input and output.
#[must_use]
pub fn parse(process: ProcessKey, stdin: &[u8], stdout: &[u8]) -> Option<PluginIo> {
    let netconf = parse_object::<Configuration>(stdin).and_then(Configuration::kept);
    let (error, addresses) = parse_object::<CniResult>(stdout)
        .map(CniResult::kept)
        .unwrap_or_default();
    let is_empty = netconf.is_none() && error.is_none() && addresses.is_empty();
    (!is_empty).then_some(PluginIo {
        process,
        netconf,
        error,
        addresses,
    })
}

/// Parses one whole JSON object (RFC 8259, section 4); `None` for anything else, a cut object included.
fn parse_object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    // serde also parses an array as a structure.
    let object = bytes.trim_ascii_start().first() == Some(&b'{');
    object.then(|| serde_json::from_slice(bytes).ok()).flatten()
}

/// The network configuration that a plugin reads (CNI specification 1.1.0, section 1, "Plugin configuration objects"). The
/// parser skips every other key without copying it: that keeps credentials out of events.
#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    name: String,
    #[serde(default, rename = "type")]
    plugin: String,
    #[serde(default, rename = "cniVersion")]
    version: String,
    /// Present from the second plugin of a chain on (CNI specification 1.1.0, section 3). Its content is not kept.
    #[serde(default, rename = "prevResult")]
    previous: Option<IgnoredAny>,
}

impl Configuration {
    /// What becomes part of an event; `None` for an object that is no network configuration.
    fn kept(self) -> Option<NetConf> {
        // One of them is enough: which of the two a caller left out is for the plugin to complain about.
        if self.name.is_empty() && self.plugin.is_empty() {
            return None;
        }
        Some(NetConf {
            network: bounded(self.name, NAME_MAX),
            plugin: bounded(self.plugin, NAME_MAX),
            version: bounded(self.version, NAME_MAX),
            chained: self.previous.is_some(),
        })
    }
}

/// A success or an error (CNI specification 1.1.0, section 5).
#[derive(Deserialize)]
struct CniResult {
    /// Only an error has one: a success never has the key.
    code: Option<u32>,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
    #[serde(default)]
    ips: Vec<Address>,
    /// Until version 0.2.0 of the specification, in place of `ips`.
    ip4: Option<Address>,
    /// Likewise.
    ip6: Option<Address>,
}

/// One address in CIDR notation: `address` since version 0.3.0 of the specification, `ip` before.
#[derive(Deserialize)]
struct Address {
    #[serde(default, alias = "ip")]
    address: String,
}

impl CniResult {
    /// The error, or the addresses of a success; never both.
    fn kept(self) -> (Option<CniError>, Vec<String>) {
        if let Some(code) = self.code {
            let error = CniError {
                code,
                msg: message(&self.msg),
                details: message(&self.details),
            };
            return (Some(error), Vec::new());
        }
        let addresses = self.ips.into_iter().chain(self.ip4).chain(self.ip6);
        let addresses = addresses.map(|address| bounded(address.address, ADDRESS_MAX));
        (
            None,
            addresses
                .filter(|address| !address.is_empty())
                .take(ADDRESSES_MAX)
                .collect(),
        )
    }
}

/// Masked before it is cut: a secret that was cut in two may look like none.
fn message(text: &str) -> String {
    bounded(masking::text(text).into_owned(), MESSAGE_MAX)
}

/// At most `max` bytes of a text, cut between characters.
fn bounded(mut text: String, max: usize) -> String {
    text.truncate(text.floor_char_boundary(max));
    text
}

/// Bytes of a name of a network, plugin or version. Names of plugins are file names, which are no longer (NAME_MAX of
/// include/uapi/linux/limits.h is 255).
const NAME_MAX: usize = 256;
/// Bytes of each text of an error.
const MESSAGE_MAX: usize = 1024;
/// Bytes of an address. The longest text of an IPv6 address has 45 (INET6_ADDRSTRLEN), a prefix length 4 more.
const ADDRESS_MAX: usize = 64;
/// Addresses of one result. The page that a result is read from (4 KiB) holds few more.
const ADDRESSES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOBODY: ProcessKey = ProcessKey { pid: 1, start_ticks: 2 };

    #[test]
    /// Neither the field nor anything else of the event shows the token.
    fn a_configuration_loses_its_secrets() {
        let stdin = br#"{"cniVersion":"1.0.0","name":"pods","type":"calico","token":"s3cret",
            "kubernetes":{"k8s_api_root":"x"},"prevResult":{"ips":[]}}"#;
        let io = parse(NOBODY, stdin, b"").unwrap();
        let netconf = io.netconf.clone().unwrap();
        assert_eq!(
            (&*netconf.network, &*netconf.plugin, &*netconf.version),
            ("pods", "calico", "1.0.0")
        );
        assert!(netconf.chained);
        assert!(!format!("{io:?}").contains("s3cret"));
    }

    /// Of a result the addresses with their prefix lengths, in the form of every version of the specification.
    #[test]
    fn errors_and_addresses_are_kept() {
        let stdout = br#"{"cniVersion":"1.0.0","code":11,"msg":"again","details":"d"}"#;
        let error = parse(NOBODY, b"", stdout).unwrap().error.unwrap();
        assert_eq!((error.code, &*error.msg, &*error.details), (11, "again", "d"));
        let stdout = br#"{"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00::2/64"}],"dns":{}}"#;
        assert_eq!(
            parse(NOBODY, b"", stdout).unwrap().addresses,
            ["10.1.0.2/24", "fd00::2/64"]
        );
        let old = br#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.9/8"}}"#;
        assert_eq!(parse(NOBODY, b"", old).unwrap().addresses, ["10.0.0.9/8"]);
    }

    /// A cut object, two values, or another type: what a pipe still holds may be anything.
    #[test]
    fn what_is_not_one_object_gives_nothing() {
        for text in [
            "",
            "{",
            "[]",
            r#"{"name":"x""#,
            r#"{"name":"x"} trailing"#,
            "null",
            r#"{"a":1}"#,
            r#"["x","y","z",null]"#,
        ] {
            assert_eq!(parse(NOBODY, text.as_bytes(), text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(NOBODY, b"\xff", b"{\xfe}"), None);
    }

    #[test]
    /// Two bytes for each character behind the first: the bound of 1,024 lies within one.
    fn long_messages_are_cut_between_characters() {
        let stdout = format!(r#"{{"code":100,"msg":"x{}"}}"#, "ü".repeat(1_500));
        let message = parse(NOBODY, b"", stdout.as_bytes()).unwrap().error.unwrap().msg;
        assert_eq!(message.len(), 1_023);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(stdin in prop::collection::vec(any::<u8>(), 0..128), stdout in ".{0,64}") {
            let _ = parse(NOBODY, &stdin, format!("{{{stdout}}}").as_bytes());
        }
    }
}
