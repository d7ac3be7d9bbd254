const get = (id) => document.getElementById(id);
const drop = document.querySelector(".drop");
let image = null, asked = 0;
async function answer() {
  if (!image) return;
  const own = ++asked;
  get("problem").textContent = "";
  if (image.size > {{ limit_mb }}e6) {
    get("problem").textContent = "The image is larger than {{ limit_mb }} MB; use a smaller one.";
    return;
  }
  get("state").textContent = "The model is answering …";
  let text, failed = true;
  try {
    const url = "/answer?ask=" + encodeURIComponent(get("ask").value);
    const reply = await fetch(url, {method: "POST", body: image});
    text = await reply.text();
    failed = !reply.ok;
  } catch (error) {
    text = "The server does not answer; start mm-numeric demo again.";
  }
  if (own !== asked) return;
  get("state").textContent = "";
  get("problem").textContent = failed ? text : "";
  get("answer").innerHTML = failed ? "" : text;
}
function choose(files) {
  if (files.length) {
    image = files[0];
    answer();
  }
}
document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  answer();
});
get("file").addEventListener("change", () => choose(get("file").files));
for (const kind of ["dragover", "dragleave", "drop"])
  addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop") choose(event.dataTransfer.files);
  });
