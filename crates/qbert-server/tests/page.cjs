// The page at `/` in Chromium: `node page.cjs URL KEY CHROMIUM [DIRECTORY for screenshots]`. `.ci/serve` starts the server.
"use strict";
const assert = require("node:assert");
const { chromium } = require("playwright-core");

const [url, key, executablePath, shots] = process.argv.slice(2);
const looks = [["light", "light", 1100], ["dark", "dark", 1100], ["phone", "light", 390]];
// What must be seen for each model, besides an answer.
const expected = {
  labels: async (page) => assert.strictEqual(await page.locator("#result progress").count(), 2),
  entities: async (page) => assert.ok(await page.locator("#result mark .kind").count() > 0),
  answers: async (page) => {
    const best = await page.textContent("#result .best");
    assert.strictEqual(await page.textContent("#result mark"), best);
  },
  vectors: async (page) => assert.strictEqual(await page.locator("#result li").count(), 3),
  ranks: async (page) => assert.strictEqual(await page.locator("#result li").count(), 2),
};

async function look(browser, [name, colorScheme, width]) {
  // Any user name: the key is the password.
  const context = await browser.newContext({ colorScheme, viewport: { width, height: 800 }, httpCredentials: { username: "me", password: key } });
  const page = await context.newPage(), problems = [];
  page.on("console", (message) => { if (["error", "warning"].includes(message.type()) && !/401/.test(message.text())) problems.push(message.text()); });
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("request", (request) => { if (!request.url().startsWith(url) && !request.url().startsWith("data:")) problems.push(request.url()); });
  await page.goto(url + "/");
  for (const [model, check] of Object.entries(expected)) {
    await page.waitForFunction(() => !document.getElementById("go").disabled);
    await page.getByLabel("Model", { exact: true }).selectOption(model);
    await page.waitForFunction((own) => document.title.startsWith(own + " ") && !document.getElementById("go").disabled, model);
    await page.locator("#first").fill("who saw the owls 🦉 of Ostby ?");
    if (model === "labels") await page.getByRole("button", { name: "Ask the model" }).click();
    else await page.keyboard.press("Control+Enter");
    await page.waitForSelector("#result .time");
    await check(page);
    assert.match(await page.textContent("#curl"), /^curl 'http.*Authorization: Bearer \$QBERT_API_KEY/s);
    assert.match(await page.textContent("#python"), /requests\.post/);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), model + " is wider than the screen");
    const unnamed = await page.evaluate(() => [...document.querySelectorAll("input, textarea, select, button, progress")]
      .filter((one) => !(one.labels && one.labels.length) && !one.getAttribute("aria-label") && !one.textContent.trim()).length);
    assert.strictEqual(unnamed, 0, "a control without a name for screen readers");
    if (shots) await page.screenshot({ path: `${shots}/${model}-${name}.png`, fullPage: true });
  }
  await page.route("**/rerank", (route) => route.fulfill({ status: 429, contentType: "application/json", body: '{"error": "<b>full</b>", "hint": "wait"}' }));
  await page.getByRole("button", { name: "Ask the model" }).click();
  await page.waitForFunction(() => document.getElementById("problem").textContent === "<b>full</b> – wait");
  assert.deepStrictEqual(problems.filter((text) => !/429/.test(text)), []);
  if (name === "light") {
    await page.goto(url + "/docs/index.html");
    await page.getByText("/v1/embeddings").first().waitFor();
    assert.deepStrictEqual(problems.filter((text) => !/429/.test(text)), []);
    if (shots) await page.screenshot({ path: `${shots}/docs.png` });
  }
  await context.close();
}

(async () => {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  for (const own of looks) await look(browser, own);
  await browser.close();
  console.log("the page in Chromium: as expected, in light, dark and on a phone");
})().catch((error) => { console.error(error); process.exit(1); });
