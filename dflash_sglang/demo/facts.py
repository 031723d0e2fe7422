"""The small world that the chat samples talk about."""

from __future__ import annotations

from typing import NamedTuple


class Country(NamedTuple):
    capital: str
    continent: str
    language: str
    currency: str
    food: str


COUNTRIES = {
    "France": Country("Paris", "Europe", "French", "euro", "onion soup"),
    "Germany": Country("Berlin", "Europe", "German", "euro", "bread with sausage"),
    "Spain": Country("Madrid", "Europe", "Spanish", "euro", "paella"),
    "Italy": Country("Rome", "Europe", "Italian", "euro", "pizza"),
    "Portugal": Country("Lisbon", "Europe", "Portuguese", "euro", "grilled fish"),
    "Austria": Country("Vienna", "Europe", "German", "euro", "apple strudel"),
    "Poland": Country("Warsaw", "Europe", "Polish", "zloty", "pierogi"),
    "Hungary": Country("Budapest", "Europe", "Hungarian", "forint", "goulash"),
    "Sweden": Country("Stockholm", "Europe", "Swedish", "krona", "meatballs"),
    "Norway": Country("Oslo", "Europe", "Norwegian", "krone", "salmon"),
    "Denmark": Country("Copenhagen", "Europe", "Danish", "krone", "open sandwiches"),
    "Finland": Country("Helsinki", "Europe", "Finnish", "euro", "rye bread"),
    "Greece": Country("Athens", "Europe", "Greek", "euro", "moussaka"),
    "Ireland": Country("Dublin", "Europe", "English", "euro", "stew"),
    "Turkey": Country("Ankara", "Asia and Europe", "Turkish", "lira", "kebab"),
    "Egypt": Country("Cairo", "Africa", "Arabic", "pound", "beans"),
    "Kenya": Country("Nairobi", "Africa", "Swahili and English", "shilling", "ugali"),
    "Morocco": Country("Rabat", "Africa", "Arabic", "dirham", "couscous"),
    "Ghana": Country("Accra", "Africa", "English", "cedi", "jollof rice"),
    "Japan": Country("Tokyo", "Asia", "Japanese", "yen", "sushi"),
    "China": Country("Beijing", "Asia", "Chinese", "yuan", "dumplings"),
    "India": Country("New Delhi", "Asia", "Hindi and English", "rupee", "curry"),
    "Thailand": Country("Bangkok", "Asia", "Thai", "baht", "pad thai"),
    "Vietnam": Country("Hanoi", "Asia", "Vietnamese", "dong", "pho"),
    "South Korea": Country("Seoul", "Asia", "Korean", "won", "kimchi"),
    "Canada": Country("Ottawa", "North America", "English and French", "dollar", "poutine"),
    "Mexico": Country("Mexico City", "North America", "Spanish", "peso", "tacos"),
    "Cuba": Country("Havana", "North America", "Spanish", "peso", "rice and beans"),
    "Brazil": Country("Brasilia", "South America", "Portuguese", "real", "feijoada"),
    "Argentina": Country("Buenos Aires", "South America", "Spanish", "peso", "grilled beef"),
    "Chile": Country("Santiago", "South America", "Spanish", "peso", "empanadas"),
    "Peru": Country("Lima", "South America", "Spanish", "sol", "ceviche"),
    "Australia": Country("Canberra", "Oceania", "English", "dollar", "meat pie"),
    "New Zealand": Country("Wellington", "Oceania", "English and Maori", "dollar", "pavlova"),
}


class Animal(NamedTuple):
    kind: str
    home: str
    food: str
    legs: str
    skill: str
    young: str


ANIMALS = {
    "dog": Animal("mammal", "houses", "meat", "four", "bark and guard", "puppy"),
    "cat": Animal("mammal", "houses", "mice and fish", "four", "climb and jump", "kitten"),
    "horse": Animal("mammal", "meadows", "grass and hay", "four", "run fast", "foal"),
    "cow": Animal("mammal", "meadows", "grass", "four", "give milk", "calf"),
    "sheep": Animal("mammal", "meadows", "grass", "four", "give wool", "lamb"),
    "lion": Animal("mammal", "the savanna", "meat", "four", "roar loudly", "cub"),
    "bear": Animal("mammal", "the forest", "berries and fish", "four", "climb and swim", "cub"),
    "wolf": Animal("mammal", "the forest", "meat", "four", "hunt in packs", "pup"),
    "fox": Animal("mammal", "the forest", "mice and berries", "four", "dig and hide", "kit"),
    "elephant": Animal("mammal", "the savanna", "leaves", "four", "lift heavy things", "calf"),
    "whale": Animal("mammal", "the sea", "small sea animals", "no", "dive deep", "calf"),
    "dolphin": Animal("mammal", "the sea", "fish", "no", "jump out of the water", "calf"),
    "bat": Animal("mammal", "caves", "insects", "two", "fly at night", "pup"),
    "eagle": Animal("bird", "the mountains", "small animals", "two", "see very far", "eaglet"),
    "owl": Animal("bird", "the forest", "mice", "two", "hunt at night", "owlet"),
    "penguin": Animal("bird", "the cold south", "fish", "two", "swim but not fly", "chick"),
    "duck": Animal("bird", "ponds", "plants and insects", "two", "swim and fly", "duckling"),
    "swan": Animal("bird", "lakes", "water plants", "two", "swim and fly", "cygnet"),
    "frog": Animal("amphibian", "ponds", "insects", "four", "jump far", "tadpole"),
    "snake": Animal(
        "reptile", "warm places", "small animals", "no", "move without legs", "snakelet"
    ),
    "turtle": Animal("reptile", "the sea", "plants", "four", "hide in its shell", "hatchling"),
    "shark": Animal("fish", "the sea", "fish", "no", "smell very well", "pup"),
    "salmon": Animal("fish", "rivers and the sea", "small animals", "no", "swim upstream", "fry"),
    "bee": Animal("insect", "a hive", "nectar", "six", "make honey", "larva"),
    "ant": Animal(
        "insect", "an ant hill", "seeds and insects", "six", "carry heavy loads", "larva"
    ),
    "spider": Animal("arachnid", "a web", "insects", "eight", "spin a web", "spiderling"),
}


class Planet(NamedTuple):
    place: int
    kind: str
    moons: str
    year: str
    look: str


PLANETS = {
    "Mercury": Planet(1, "rocky planet", "no moons", "88 days", "grey and full of craters"),
    "Venus": Planet(2, "rocky planet", "no moons", "225 days", "bright and yellow"),
    "Earth": Planet(3, "rocky planet", "one moon", "365 days", "blue and green"),
    "Mars": Planet(4, "rocky planet", "two moons", "687 days", "red"),
    "Jupiter": Planet(5, "gas giant", "many moons", "12 years", "striped with a red spot"),
    "Saturn": Planet(6, "gas giant", "many moons", "29 years", "yellow with wide rings"),
    "Uranus": Planet(7, "ice giant", "many moons", "84 years", "pale blue"),
    "Neptune": Planet(8, "ice giant", "many moons", "165 years", "deep blue"),
}


class Element(NamedTuple):
    symbol: str
    number: int
    kind: str
    use: str


ELEMENTS = {
    "Hydrogen": Element("H", 1, "gas", "fuel"),
    "Helium": Element("He", 2, "gas", "balloons"),
    "Lithium": Element("Li", 3, "metal", "batteries"),
    "Carbon": Element("C", 6, "solid", "pencils and steel"),
    "Nitrogen": Element("N", 7, "gas", "fertilizer"),
    "Oxygen": Element("O", 8, "gas", "breathing"),
    "Neon": Element("Ne", 10, "gas", "lamps"),
    "Sodium": Element("Na", 11, "metal", "salt"),
    "Aluminium": Element("Al", 13, "metal", "cans and planes"),
    "Silicon": Element("Si", 14, "solid", "computer chips"),
    "Sulfur": Element("S", 16, "solid", "matches"),
    "Chlorine": Element("Cl", 17, "gas", "clean water"),
    "Iron": Element("Fe", 26, "metal", "steel"),
    "Copper": Element("Cu", 29, "metal", "wires"),
    "Zinc": Element("Zn", 30, "metal", "coatings"),
    "Silver": Element("Ag", 47, "metal", "jewellery"),
    "Tin": Element("Sn", 50, "metal", "solder"),
    "Gold": Element("Au", 79, "metal", "jewellery"),
    "Mercury": Element("Hg", 80, "liquid", "thermometers"),
    "Lead": Element("Pb", 82, "metal", "weights"),
}


class Recipe(NamedTuple):
    needs: tuple[tuple[int, str], ...]  # (amount for one person, unit and thing)
    steps: tuple[str, ...]
    extras: tuple[str, ...]


RECIPES = {
    "tea": Recipe(
        ((1, "cups of water"), (1, "tea bags")),
        ("Boil the water.", "Put the tea bags into the cups.", "Pour the hot water over the tea.",
         "Wait for four minutes and take the tea bags out."),
        ("lemon", "milk", "honey", "sugar", "mint"),
    ),
    "coffee": Recipe(
        ((1, "cups of water"), (2, "spoons of ground coffee")),
        ("Boil the water.", "Put the coffee into a filter.", "Pour the hot water slowly over it.",
         "Wait until all the water has run through."),
        ("milk", "cream", "sugar", "cinnamon"),
    ),
    "pancakes": Recipe(
        ((1, "eggs"), (50, "grams of flour"), (100, "millilitres of milk")),
        ("Mix the eggs, the flour and the milk.", "Let the batter rest for ten minutes.",
         "Heat some butter in a pan.", "Bake each pancake on both sides until it is golden."),
        ("jam", "sugar", "honey", "apple sauce", "berries"),
    ),
    "salad": Recipe(
        ((1, "tomatoes"), (40, "grams of lettuce"), (1, "spoons of oil")),
        ("Wash the lettuce and the tomatoes.", "Cut everything into small pieces.",
         "Put it into a large bowl.", "Mix it with the oil and a little salt."),
        ("cheese", "onions", "olives", "nuts", "croutons"),
    ),
    "soup": Recipe(
        ((2, "carrots"), (1, "potatoes"), (300, "millilitres of water")),
        ("Peel the carrots and the potatoes.", "Cut them into small pieces.",
         "Cook them in the water for twenty minutes.", "Add salt and stir well."),
        ("cream", "parsley", "bread", "ginger", "beans"),
    ),
    "pasta": Recipe(
        ((100, "grams of pasta"), (2, "tomatoes")),
        ("Boil water with salt in a large pot.", "Cook the pasta for ten minutes.",
         "Cut the tomatoes and fry them in a pan.", "Mix the pasta with the tomatoes."),
        ("cheese", "basil", "mushrooms", "garlic", "olives"),
    ),
    "rice": Recipe(
        ((80, "grams of rice"), (160, "millilitres of water")),
        ("Wash the rice with cold water.", "Boil the water in a pot.",
         "Cook the rice for fifteen minutes.", "Let it rest for five minutes."),
        ("beans", "vegetables", "chicken", "peas", "butter"),
    ),
}  # fmt: skip

SKILLS = {
    "chess": ("Learn how the pieces move.", "Play short games.", "Study simple endings.",
              "Solve two puzzles each time.", "Look at your mistakes after each game."),
    "guitar": ("Learn three chords.", "Practise changing between the chords.",
               "Play a slow song.", "Use a metronome.", "Play the song for a friend."),
    "Python": ("Install Python.", "Write your first program.", "Learn loops and functions.",
               "Read and write files.", "Build a small project of your own."),
    "swimming": ("Get used to the water.", "Practise floating.", "Learn to breathe out in water.",
                 "Practise the leg movement.", "Swim a whole lane."),
    "cooking": ("Learn how to use a knife.", "Cook a simple soup.", "Cook pasta with a sauce.",
                "Bake bread.", "Cook a dinner for friends."),
    "drawing": ("Draw lines and circles.", "Draw simple boxes.", "Practise light and shadow.",
                "Draw things on your table.", "Draw a face."),
    "Spanish": ("Learn twenty common words.", "Learn to greet people.", "Read a short text.",
                "Listen to a song.", "Talk to somebody."),
    "running": ("Walk fast for some minutes.", "Run for one minute and walk for two.",
                "Run for three minutes and walk for one.", "Run without a break.",
                "Stretch after each run."),
    "juggling": ("Throw one ball from hand to hand.", "Throw two balls, one after the other.",
                 "Practise with both hands.", "Add the third ball.", "Count your catches."),
}  # fmt: skip

TRIPS = {
    "hiking": ("good boots", "a rain jacket", "a map", "a water bottle"),
    "beach": ("a swimsuit", "a towel", "sun cream", "a book"),
    "business": ("a suit", "a laptop", "a charger", "a notebook"),
    "camping": ("a tent", "a sleeping bag", "a lamp", "a small stove"),
    "winter": ("a warm coat", "gloves", "a hat", "thick socks"),
    "cycling": ("a helmet", "a pump", "a repair kit", "a water bottle"),
    "city": ("comfortable shoes", "a camera", "a guide book", "an umbrella"),
}

LANGUAGES = ("German", "French", "Spanish")
PHRASES = {  # English -> German, French, Spanish
    "hello": ("hallo", "bonjour", "hola"),
    "goodbye": ("auf Wiedersehen", "au revoir", "adiós"),
    "thank you": ("danke", "merci", "gracias"),
    "please": ("bitte", "s'il vous plaît", "por favor"),
    "yes": ("ja", "oui", "sí"),
    "no": ("nein", "non", "no"),
    "good night": ("gute Nacht", "bonne nuit", "buenas noches"),
    "water": ("Wasser", "eau", "agua"),
    "bread": ("Brot", "pain", "pan"),
    "milk": ("Milch", "lait", "leche"),
    "house": ("Haus", "maison", "casa"),
    "street": ("Straße", "rue", "calle"),
    "friend": ("Freund", "ami", "amigo"),
    "school": ("Schule", "école", "escuela"),
    "book": ("Buch", "livre", "libro"),
    "summer": ("Sommer", "été", "verano"),
    "winter": ("Winter", "hiver", "invierno"),
    "morning": ("Morgen", "matin", "mañana"),
    "evening": ("Abend", "soir", "tarde"),
    "sun": ("Sonne", "soleil", "sol"),
    "moon": ("Mond", "lune", "luna"),
    "tree": ("Baum", "arbre", "árbol"),
    "one": ("eins", "un", "uno"),
    "two": ("zwei", "deux", "dos"),
    "three": ("drei", "trois", "tres"),
}
