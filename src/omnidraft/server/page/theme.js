// Dark or light, before anything is drawn; settings.js keeps it.
try {
  document.documentElement.dataset.theme = JSON.parse(localStorage.getItem("omnidraft-settings"))?.theme ?? "system";
} catch {
  document.documentElement.dataset.theme = "system";
}
