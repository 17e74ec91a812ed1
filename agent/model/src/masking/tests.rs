use proptest::prelude::*;

use super::*;
use crate::cni::{CniError, NetConf};
use crate::event::SandboxDescription;
use crate::id::{ProcessKey, SandboxId};
use crate::windows::Service;

const NOBODY: ProcessKey = ProcessKey { pid: 1, start_ticks: 2 };
const JWT: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJzYSJ9.c2lnbmF0dXJl";
const BASE64: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzEXAMPLEKEY";

fn masked_args(args: &[&str]) -> Vec<String> {
    let list: TextList = args.iter().collect();
    let masked = arguments(&list).unwrap_or(list);
    masked.iter().map(str::to_owned).collect()
}

#[test]
fn secrets_in_arguments_are_masked() {
    for (args, expected) in [
        (&["x", "--password", "hunter2"][..], &["x", "--password", "***"][..]),
        (&["x", "--password=hunter2 and more"], &["x", "--password=***"]),
        (&["x", "-token", "-starts-with-a-dash"], &["x", "-token", "***"]),
        (&["env", "DB_PASSWORD=a,b;c&d", "y"], &["env", "DB_PASSWORD=***", "y"]),
        (
            &["curl", "-H", "Authorization: Bearer abc"],
            &["curl", "-H", "Authorization: Bearer ***"],
        ),
        (&["curl", "-H", "X-Api-Key: abc def"], &["curl", "-H", "X-Api-Key: ***"]),
        (&["curl", "-u", "me:hunter2"], &["curl", "-u", "me:***"]),
        (
            &["curl", "https://me:pw@h/x?a=1&token=t#f=g"],
            &["curl", "https://***@h/x?a=***&token=***"],
        ),
        (&["curl", "https://me:p/w@h/x"], &["curl", "https://***@h/x"]),
        (&["curl", "https://me:cut-off"], &["curl", "https://***"]),
        (
            &["mount", "-o", "user=me,password=a,b,vers=3"],
            &["mount", "-o", "user=me,password=***,vers=3"],
        ),
        (&["x", "me:hunter2@tcp(db:3306)/d"], &["x", "me:***@tcp(db:3306)/d"]),
        (&["x", JWT], &["x", "***"]),
        (&["x", BASE64], &["x", "***"]),
        (&["x", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"], &["x", "***"]),
        (
            &["kubeadm", "join", "abcdef.0123456789abcdef"],
            &["kubeadm", "join", "***"],
        ),
        (&["nmcli", "password", "hunter2"], &["nmcli", "password", "***"]),
        (
            &[
                "sh",
                "-c",
                "mysql --password 'two words' -e x; curl -H \"Authorization: Bearer abc\" u",
            ],
            &[
                "sh",
                "-c",
                "mysql --password '***' -e x; curl -H \"Authorization: Bearer ***\" u",
            ],
        ),
        (
            &[
                "powershell.exe",
                "-Command",
                "$p = ConvertTo-SecureString -String \"x\" -AsPlainText",
            ],
            &["powershell.exe", "-Command", "$p = ConvertTo-SecureString ***"],
        ),
        (
            &["powershell.exe", "-EncodedCommand", "SQBFAFgA"],
            &["powershell.exe", "-EncodedCommand", "***"],
        ),
        (&["x.exe", "/password:hunter2"], &["x.exe", "/password:***"]),
    ] {
        assert_eq!(masked_args(args), expected, "{args:?}");
    }
}

#[test]
fn ids_chains_addresses_and_paths_stay() {
    let id = "564237812ae0ef5d2db9c54e1b65d468b76ef7211cf92356a9d8417a5d5c5fa9";
    let comment = format!("dnat name: \"pods\" id: \"{id}\"");
    for args in [
        &[
            "iptables",
            "-t",
            "nat",
            "-A",
            "KUBE-SEP-ABCDEFGH2JKLMN3P",
            "-j",
            "KUBE-MARK-MASQ",
        ][..],
        &[
            "iptables",
            "-A",
            "CNI-DN-ee6eb16a8cb1a9c1bdc1a",
            "-m",
            "comment",
            "--comment",
            &comment,
        ],
        &[
            "iptables",
            "-p",
            "tcp",
            "--dport",
            "8080",
            "--to-destination",
            "10.213.70.2:80",
        ],
        &[
            "iptables",
            "-A",
            "cali-tw-cali0ef24b1a2c3",
            "-m",
            "comment",
            "--comment",
            "cali:Xj8bbKCmdhrMNNLp",
        ],
        &[
            "nft",
            "add",
            "rule",
            "ip",
            "kube-proxy",
            "service-2QRHZV4L-default/kubernetes/tcp/https",
        ],
        &[
            "ip",
            "link",
            "set",
            "veth0a1b2c3d",
            "netns",
            "/var/run/netns/cni-0a1b2c3d-1234-5678-9abc-def012345678",
        ],
        &[
            "runc",
            "--root",
            "/run/containerd/runc/k8s.io",
            "--log-format=json",
            "create",
            "--bundle",
            "/run/x",
            id,
        ],
        &[
            "ctr",
            "run",
            "registry.k8s.io/pause:3.9@sha256:7031c1b283388d2c2e09b57badb803c05ebed362dc88d84b480cc47f72a21097",
        ],
        &[
            "x",
            "00-15-5D-3A-31-08",
            "fd00:1234:5678:9abc::1/64",
            "0x2000/0x2000",
            "18446744073709551615",
        ],
        &[
            "x",
            "--token-file",
            "/var/run/secrets/token",
            "{0A1B2C3D-0000-1111-2222-333344445555}",
        ],
        &["unshare", "--user", "1000:1000", "-u", "root"],
        &[
            "powershell.exe",
            "-Command",
            "Get-HnsEndpoint | Where-Object Name -eq EndpointAttachShared",
        ],
        &["/opt/cni/bin/bridge"],
        &[
            "x",
            "--key-length",
            "20",
            "https://10.0.0.1:6443/api/v1/namespaces?",
            "unix:///run/containerd/containerd.sock",
        ],
    ] {
        assert_eq!(masked_args(args), args);
    }
}

#[test]
fn secrets_in_messages_are_masked_and_the_rest_is_kept() {
    for (plain, masked) in [
        (
            "GET https://api/x?token=abc123&pod=p failed",
            "GET https://api/x?token=***&pod=*** failed",
        ),
        (
            r#"config {"password": "hunter2, x", "user": "me"}"#,
            r#"config {"password": "***", "user": "me"}"#,
        ),
        (
            r#"got {\"token\":\"abc\",\"a\":1}"#,
            r#"got {\"token\":\"***\",\"a\":1}"#,
        ),
        (
            "Authorization: Bearer eyJhbGciOi.x.y rejected",
            "Authorization: Bearer *** rejected",
        ),
        (
            "Authorization: Digest username=\"u\", response=\"r\"",
            "Authorization: Digest ***",
        ),
        ("sent bearer eyJhbGciOiJIUzI1NiJ9 twice", "sent bearer *** twice"),
        ("API_KEY=k1;SECRET: s2", "API_KEY=***;SECRET: ***"),
        ("credentials: {a: {b: c}} used", "credentials: *** used"),
        (
            "x -----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY----- y",
            "x -----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY----- y",
        ),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "-----BEGIN PRIVATE KEY-----***"),
        ("invalid token in netconf", "invalid token in netconf"),
        ("basic check failed: no bridge", "basic check failed: no bridge"),
        (
            "no IP addresses available in range set",
            "no IP addresses available in range set",
        ),
        ("token=", "token="),
        (
            "automountServiceAccountToken: true",
            "automountServiceAccountToken: true",
        ),
        (
            "failed to find plugin \"bridge\" in path [/opt/cni/bin]",
            "failed to find plugin \"bridge\" in path [/opt/cni/bin]",
        ),
        (
            "dial tcp 10.96.0.1:443: connect: connection refused",
            "dial tcp 10.96.0.1:443: connect: connection refused",
        ),
    ] {
        assert_eq!(text(plain), masked);
    }
}

fn exec(args: &[&str], env: &[(&str, &str)]) -> Exec {
    Exec {
        process: NOBODY,
        parent: NOBODY,
        parent_comm: "containerd".into(),
        path: args[0].into(),
        args: args.iter().collect(),
        args_truncated: false,
        env: env.iter().copied().collect(),
        cgroup: String::new(),
        netns: 0,
        counted: None,
        running: false,
    }
}

#[test]
fn the_setting_decides_about_arguments_and_nothing_else() {
    let env = [
        (
            "CNI_ARGS",
            "K8S_POD_NAME=my-token;K8S_POD_NAMESPACE=n;TOKEN=hunter2;Policy=a",
        ),
        ("CNI_PASSWORD", "hunter2"),
        ("CNI_NETNS", "/run/netns/x"),
    ];
    for (setting, path, expected) in [
        (Arguments::Masked, "/bin/x", &["/bin/x", "--token", "***", "y"][..]),
        (Arguments::Full, "/bin/x", &["/bin/x", "--token", "hunter2", "y"]),
        (Arguments::None, "/bin/x", &["/bin/x"]),
        (Arguments::None, "/bin/runc", &["/bin/runc", "--token", "***", "y"]),
    ] {
        let mut body = Body::ProcessExecuted(Box::new(exec(&[path, "--token", "hunter2", "y"], &env)));
        event(&mut body, setting);
        let Body::ProcessExecuted(exec) = body else { panic!() };
        assert_eq!(exec.args.iter().collect::<Vec<_>>(), expected, "{setting:?}");
        let args = "K8S_POD_NAME=my-token;K8S_POD_NAMESPACE=n;TOKEN=***;Policy=a";
        assert_eq!(
            exec.env,
            [
                ("CNI_ARGS", args),
                ("CNI_PASSWORD", "***"),
                ("CNI_NETNS", "/run/netns/x")
            ]
        );
    }
}

#[test]
fn every_field_that_may_hold_text_is_masked() {
    let secret = "password=hunter2";
    let error = CniError {
        code: 1,
        msg: secret.to_owned(),
        details: secret.to_owned(),
    };
    let io = PluginIo {
        process: NOBODY,
        netconf: Some(NetConf {
            network: secret.to_owned(),
            ..NetConf::default()
        }),
        error: Some(error),
        addresses: vec!["10.0.0.2/24".to_owned(), "fd00::1".to_owned(), "hunter2".to_owned()],
    };
    let described = SandboxDescription {
        sandbox: SandboxId("a".to_owned()),
        identity: PodIdentity {
            labels: vec![
                ("vault/token".to_owned(), "hunter2".to_owned()),
                ("app".to_owned(), "web".to_owned()),
                ("note".to_owned(), "u:hunter2@h".to_owned()),
            ],
            ..PodIdentity::default()
        },
        created_unix_ns: 0,
        ready: true,
        preexisting: false,
    };
    let step = ActivityStep {
        service: Service::Hns,
        name: "x".to_owned(),
        activity: String::new(),
        related: String::new(),
        pid: 0,
        tid: 0,
        step: ActivityChange::Stopped {
            result: None,
            message: r#"{"Password":"hunter2"}"#.to_owned(),
        },
        keys: Vec::new(),
        fields: [("callContext", r#"{"Secret":"hunter2"}"#), ("credential", "hunter2")]
            .into_iter()
            .collect(),
    };
    let failed = RuntimeReport::RunFailed {
        identity: PodIdentity::default(),
        message: secret.to_owned(),
    };
    for mut body in [
        Body::PluginIoRead(Box::new(io)),
        Body::SandboxDescribed(Box::new(described)),
        Body::ActivitySeen(Box::new(step)),
        Body::RuntimeReported(Box::new(failed)),
    ] {
        event(&mut body, Arguments::Full);
        let json = serde_json::to_string(&body).unwrap();
        assert!(json.contains("***") && !json.contains("hunter2"), "{json}");
    }
}

/// Where a secret may stand, with a place for it.
fn places() -> impl Strategy<Value = (String, String)> {
    let forms = prop::sample::select(vec![
        "--password={}",
        "password={}",
        "API-KEY: {}",
        "{\"token\":\"{}\"}",
        "{\\\"secret\\\": \\\"{}\\\"}",
        "--token {}",
        "https://me:{}@h/p",
        "https://h/p?x={}&y=1",
        "Authorization: Bearer {}",
        "credential='{}'",
        "me:{}@tcp(h)/d",
        "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----",
        "clientSecret := {}",
        "-Password \"{}\"",
    ]);
    ("[a-zA-Z0-9]{13,24}", forms).prop_map(|(secret, form)| (form.replace("{}", &secret), secret))
}

proptest! {
    #[test]
    fn no_planted_secret_stays_in_a_text((planted, secret) in places(), before in "[a-z .,]{0,20}", after in "[a-z .]{0,20}") {
        let plain = format!("{before} {planted} {after}");
        let masked = text(&plain);
        prop_assert!(!masked.contains(&secret), "{masked}");
    }

    #[test]
    fn no_planted_secret_stays_in_arguments((planted, secret) in places(), other in "[a-z-]{0,12}") {
        let masked = masked_args(&["x", &other, &planted, "--token", &secret, &other]);
        prop_assert!(masked.iter().all(|argument| !argument.contains(&secret)), "{masked:?}");
    }

    #[test]
    fn masking_is_bounded_and_masks_nothing_twice(plain in "(\\PC|[-=:@/\"'\\\\ {}?&*]|token|https://|--key |Bearer ){0,40}") {
        let masked = text(&plain).into_owned();
        prop_assert!(masked.len() <= 3 * plain.len() + 3, "{masked}");
        prop_assert_eq!(text(&masked), masked.as_str());
        let list: TextList = plain.split(' ').collect();
        let once = arguments(&list).unwrap_or(list);
        prop_assert_eq!(arguments(&once).unwrap_or_else(|| once.clone()), once);
    }

    #[test]
    fn hexadecimal_ids_and_numbers_stay(id in "[0-9a-f]{12,64}", number in 0_u64..) {
        let plain = format!("container {id} of {number}");
        prop_assert_eq!(text(&plain), plain.as_str());
    }
}
