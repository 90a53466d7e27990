/* Glossary terms and symbols show their definition: to the pointer, to the keyboard, and at a first tap, after
   which a second one follows the link. Escape puts it away; the pointer may move onto it. Without this script it is
   the link's title. */
(function () {
  var box, shown, tapped, waiting;

  function hide() {
    clearTimeout(waiting);
    if (!shown) return;
    shown.title = box.textContent;
    shown.removeAttribute("aria-describedby");
    shown = null;
    box.hidden = true;
  }

  function show(link) {
    clearTimeout(waiting);
    if (link === shown) return;
    hide();
    if (!box) {
      box = document.createElement("div");
      box.id = "course-definition";
      box.setAttribute("role", "tooltip");
      document.body.append(box);
    }
    shown = link;
    box.textContent = link.title;
    box.hidden = false;
    link.removeAttribute("title");
    link.setAttribute("aria-describedby", box.id);
    var at = link.getClientRects()[0], width = document.documentElement.clientWidth;
    var left = Math.max(8, Math.min(at.left, width - box.offsetWidth - 8));
    var below = at.bottom + box.offsetHeight + 8 < window.innerHeight;
    box.style.left = left + window.scrollX + "px";
    box.style.top = (below ? at.bottom + 4 : at.top - box.offsetHeight - 4) + window.scrollY + "px";
  }

  function term(event) { return event.target.closest && event.target.closest("a.course-term"); }

  function leave(event) {
    var to = event.relatedTarget;
    if (shown && !(to && (shown.contains(to) || box.contains(to)))) waiting = setTimeout(hide, 150);
  }

  document.addEventListener("pointerover", function (event) {
    if (event.pointerType !== "mouse") return;
    if (term(event)) show(term(event));
    else if (shown && box.contains(event.target)) clearTimeout(waiting);
  });
  document.addEventListener("pointerout", function (event) {
    if (event.pointerType === "mouse") leave(event);
  });
  document.addEventListener("focusin", function (event) { if (term(event)) show(term(event)); });
  document.addEventListener("focusout", leave);
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") hide(); });
  document.addEventListener("pointerdown", function (event) {
    var link = term(event);
    tapped = event.pointerType !== "mouse" && link !== shown ? link : null;
    if (!link && shown && !box.contains(event.target)) hide();
  });
  document.addEventListener("click", function (event) {
    if (!tapped || term(event) !== tapped) return;
    event.preventDefault();
    show(tapped);
    tapped = null;
  });
})();
