/* What the search of Sphinx asks of a book: weights of its hits (its own), and a word on each.
 * A term of the glossary leads to the section that explains it; Sphinx would name only the page. */
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  score: function (hit) {
    const page = Search._index.titles[Search._index.docnames.indexOf(hit[0])];
    if (hit[2] && hit[1] === page) {
      for (const [title, found] of Object.entries(Search._index.alltitles)) {
        for (const [document, id] of found) {
          if (Search._index.docnames[document] === hit[0] && "#" + id === hit[2]) {
            hit[1] = page + " > " + title;
          }
        }
      }
    }
    return hit[4];
  },
};
