//! Chromium through its driver, as far as a visit needs it.
//!
//! Does not: know the page.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

pub const CHROMIUM: &str = "/usr/bin/chromium";
pub const DRIVER: &str = "/usr/bin/chromedriver";
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";

/// A browser with one page.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub async fn start() -> Result<Browser> {
        let mut driver = Command::new(DRIVER)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start chromedriver")?;
        let mut lines = BufReader::new(driver.stdout.take().context("chromedriver's output")?).lines();
        let port = loop {
            let line = lines.next().context("chromedriver ended")??;
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim_end_matches('.').parse()?;
            }
        };
        // Its further output is not wanted, but the pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir()?;
        let mut browser = Browser {
            driver,
            port,
            session: String::new(),
            _profile: profile,
        };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--force-color-profile=srgb",
            &format!("--user-data-dir={}", browser._profile.path().display()),
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "WARNING" },
            "goog:chromeOptions": { "binary": CHROMIUM, "args": arguments },
        } } });
        let session = browser.ask(Method::POST, "/session", capabilities).await?;
        browser.session = session["sessionId"].as_str().context("no session")?.to_owned();
        Ok(browser)
    }

    pub async fn stop(self) {
        let _ = self.call(Method::DELETE, "", Value::Null).await;
    }

    pub async fn open(&self, url: &str) -> Result<()> {
        self.call(Method::POST, "/url", json!({ "url": url })).await.map(drop)
    }

    pub async fn run(&self, script: &str) -> Result<Value> {
        self.call(Method::POST, "/execute/sync", json!({ "script": script, "args": [] }))
            .await
    }

    /// Waits until the script returns true.
    pub async fn wait(&self, script: &str) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if self.run(script).await? == true {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        let seen = self.text("body").await?;
        bail!("never true: {script}\nthe page shows:\n{seen}")
    }

    pub async fn text(&self, selector: &str) -> Result<String> {
        let text = self
            .run(&format!("return document.querySelector('{selector}')?.innerText ?? ''"))
            .await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    pub async fn click(&self, selector: &str) -> Result<()> {
        let found = self
            .call(
                Method::POST,
                "/element",
                json!({ "using": "css selector", "value": selector }),
            )
            .await?;
        let element = found
            .as_object()
            .and_then(|object| object.values().next()?.as_str())
            .context("no such element")?;
        self.call(Method::POST, &format!("/element/{element}/click"), json!({}))
            .await
            .map(drop)
    }

    /// Types where the focus is.
    pub async fn keys(&self, text: &str) -> Result<()> {
        let actions: Vec<Value> = text
            .chars()
            .flat_map(|key| {
                [
                    json!({ "type": "keyDown", "value": key }),
                    json!({ "type": "keyUp", "value": key }),
                ]
            })
            .collect();
        let body = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.call(Method::POST, "/actions", body).await.map(drop)
    }

    pub async fn size(&self, width: u32, height: u32) -> Result<()> {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false }),
        )
        .await
    }

    pub async fn both_themes(&self, name: &str) -> Result<()> {
        for theme in ["light", "dark"] {
            let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
            self.devtools("Emulation.setEmulatedMedia", features).await?;
            self.screenshot(&format!("{name}-{theme}")).await?;
        }
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": "light" }] });
        self.devtools("Emulation.setEmulatedMedia", features).await
    }

    pub async fn no_sideways_scroll(&self) -> Result<()> {
        let room = self
            .run("return document.documentElement.scrollWidth - innerWidth")
            .await?;
        ensure!(
            room.as_i64().is_some_and(|pixels| pixels <= 0),
            "the page is {room} pixels too wide"
        );
        Ok(())
    }

    pub async fn screenshot(&self, name: &str) -> Result<()> {
        // Two frames, so that what was just drawn is on it; and the glow of a new row has gone.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let image = self.call(Method::GET, "/screenshot", Value::Null).await?;
        let folder = screenshots();
        std::fs::create_dir_all(&folder)?;
        let bytes = decode_base64(image.as_str().context("no image")?)?;
        std::fs::write(folder.join(format!("{name}.png")), bytes)?;
        Ok(())
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Result<()> {
        self.call(
            Method::POST,
            "/goog/cdp/execute",
            json!({ "cmd": command, "params": parameters }),
        )
        .await
        .map(drop)
    }

    pub async fn call(&self, method: Method, path: &str, body: Value) -> Result<Value> {
        self.ask(method, &format!("/session/{}{path}", self.session), body)
            .await
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Result<Value> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", format!("127.0.0.1:{}", self.port))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answer = sender.send_request(request).await?;
        let bytes = answer.into_body().collect().await?.to_bytes();
        let answer: Value = serde_json::from_slice(&bytes)?;
        if let Some(error) = answer["value"]["error"].as_str() {
            bail!("{path}: {error}: {}", answer["value"]["message"]);
        }
        Ok(answer["value"].clone())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn screenshots() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("screenshots")
}

fn decode_base64(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0u32, 0);
    for digit in text.bytes().filter(|&digit| digit != b'=') {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("not base64: {digit:#x}"),
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff)?);
        }
    }
    Ok(bytes)
}
