//! An `.etl` file of a Windows node that logs secrets: in command lines, in messages of the runtime, in failures and fields of HNS.
//!
//! Used by `planted`. Does not: compress, so that what is planted can be found in the file.

use sandglass_etw::event::Value;
use sandglass_etw::writer::Failure;

use crate::node::{Node, Pod};

/// As those of a recording, each for one place.
pub const SECRETS: [&str; 11] = [
    "etlflagsecret",
    "etlequalssecret",
    "etlheadersecret",
    "etlurlsecret",
    "etlquerysecret",
    "etlpluginsecret",
    "etlfieldsecret",
    "etlmessagesecret",
    "etlcontextsecret",
    "etllogsecret",
    "etlerrorsecret",
];

const WEB: Pod = Pod {
    name: "web-0",
    uid: "5f1d0c1e-7a55-4a5b-9a51-000000000001",
    number: 1,
};

/// A plugin runs a command and fails in HNS; the runtime gives up.
pub fn file() -> Vec<u8> {
    let mut node = Node::with(false);
    node.run(100, WEB);
    let (plugin, command) = (4_100, 4_101);
    let line = format!(r#""{}\leaky.exe" --secret etlpluginsecret"#, crate::node::PLUGINS);
    node.process(140, 480, plugin, crate::node::RUNTIME, &line, 1);
    let line = r#"C:\k\curl.exe --password etlflagsecret --token=etlequalssecret -H "X-Api-Key: etlheadersecret" https://me:etlurlsecret@api/x?sig=etlquerysecret"#;
    node.process(150, 430, command, plugin, line, 7);
    let failure = Failure {
        hresult: 0x803b_0017,
        file: r"onecore\vm\dv\net\hns\service\network\endpoint.h",
        line: 512,
        module: "hostnetsvc.dll",
        message: r#"{"Policies":[{"Password":"etlmessagesecret"}]}"#,
        call_context: "credential=etlcontextsecret",
    };
    let fields = [
        ("method", Value::Text("POST".into())),
        ("namespaceId", Value::Guid(WEB.namespace())),
        ("message", Value::Text(r#"{"Token":"etlfieldsecret"}"#.into())),
    ];
    node.hns_failed((440, 470), "RequestHandler", None, &fields, failure);
    node.containerd(500, "cleaning up, token=etllogsecret", "");
    node.run_failed(
        580,
        WEB,
        "failed to setup network for sandbox: password: etlerrorsecret",
    );
    node.file()
}

/// Whether the bytes hold the text, in ASCII or in UTF-16.
pub fn contains(bytes: &[u8], text: &str) -> bool {
    let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let has = |wanted: &[u8]| bytes.windows(wanted.len()).any(|part| part == wanted);
    has(text.as_bytes()) || has(&wide)
}
